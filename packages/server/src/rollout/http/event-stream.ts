import { KIB, onAbort } from '@floe-rl/core';
import type { FastifyReply } from 'fastify';
import type { RolloutContext } from '../context.ts';
import type { EventFeed } from '../events.ts';

/**
 * Maximum number of characters in one write to the stream. Events are joined to one write up to this size, because one write for each event
 * would be too expensive during a burst.
 */
const WRITE_CHARS = 64 * KIB;

/**
 * Functions that return the texts that an event stream sends in addition to the events: `first` when the stream begins, `heartbeat` after
 * each interval without an event.
 */
export type StreamFrames = { readonly first: () => string; readonly heartbeat: () => string };

/** Sends all later events of a feed to a client as server-sent events, until the client or the server closes the connection. */
export function streamEvents(
  context: RolloutContext,
  feed: EventFeed,
  reply: FastifyReply,
  frames: StreamFrames,
): void {
  reply.hijack();
  const { raw } = reply;
  raw.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store', 'x-accel-buffering': 'no' });
  let next = feed.end;
  const drop = (): void => {
    context.log.warn({ missed_from: next }, 'closed an event stream because its client reads too slowly');
    raw.destroy();
  };
  const pump = (): void => {
    if (feed.at(next) === null && !raw.destroyed) drop();
    // Writing stops while the client reads slowly, and continues at the `drain` event, when the connection's buffer is empty.
    while (!raw.writableNeedDrain && !raw.destroyed) {
      let batch = '';
      for (let text = feed.at(next); text && batch.length < WRITE_CHARS; text = feed.at(++next)) batch += text;
      if (batch === '') return;
      raw.write(batch);
    }
  };
  let cancelTimer = (): void => {};
  const heartbeat = (): void => {
    cancelTimer = context.clock.schedule(context.config.event_heartbeat_seconds * 1000, () => {
      if (!raw.writableNeedDrain) raw.write(frames.heartbeat());
      heartbeat();
    });
  };
  const unsubscribe = feed.subscribe(pump);
  let release = (): void => {};
  const end = (): void => {
    unsubscribe();
    cancelTimer();
    release();
    raw.end();
  };
  raw.on('drain', pump);
  raw.once('close', end);
  raw.write(frames.first());
  heartbeat();
  release = onAbort(context.closing, end);
}
