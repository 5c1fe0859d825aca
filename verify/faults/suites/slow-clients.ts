import { connect, type Socket } from 'node:net';
import { sleep, systemClock } from '@floe-rl/core';
import { residentKb } from '../../services/processes.ts';
import type { Service } from '../service.ts';
import { underTraffic } from '../traffic.ts';
import type { Trainer } from '../trainer.ts';
import type { Suite } from './suite.ts';

const IDLE = 500;
const DRIBBLING = 50;
const NEVER_READING = 20;
const STUCK = IDLE + DRIBBLING + NEVER_READING;
/**
 * Time in seconds for which slow clients send one byte per second. It exceeds the server's time limit for request headers, after which the
 * server must have disconnected them.
 */
const DRIBBLE_SECONDS = 20;
/** Maximum growth of the server's memory, in KiB, for each stuck client. */
const MAX_KB_EACH = 64;

/** Suite S10: hundreds of clients send their request byte by byte, never read the reply, or hold a connection open without a request. */
export const slowClients: Suite = {
  id: 'S10',
  title: 'slow and stuck clients cost the others nothing',
  runs: { full: 3, quick: 1 },
  stores: ['sqlite'],
  async run({ runs, random }) {
    return underTraffic({ random, gateways: 2, feeder: { outstanding: 30 } }, async (service, trainer) => {
      let note: string | undefined;
      for (let round = 0; round < runs; round++) note = await siege(service, trainer);
      return { runs, note };
    });
  },
};

/** Connects all slow and stuck clients for `DRIBBLE_SECONDS`, and records violations. Returns the measured values as a sentence. */
async function siege(service: Service, trainer: Trainer): Promise<string> {
  const server = service.child('server', 0);
  const beforeKb = residentKb(server.pid);
  const finishedBefore = trainer.results.size;
  const sockets: Socket[] = [];
  const open = (text: string | null): Socket => {
    const socket = connect(service.port(), '127.0.0.1');
    socket.on('error', () => {});
    if (text !== null) socket.write(text);
    sockets.push(socket);
    return socket;
  };
  for (let i = 0; i < IDLE; i++) open(null);
  for (let i = 0; i < NEVER_READING; i++) open('GET /events HTTP/1.1\r\nhost: x\r\n\r\n').pause();
  const dribbling = Array.from({ length: DRIBBLING }, () =>
    open('POST /rollout/task/submit HTTP/1.1\r\nhost: x\r\n').resume(),
  );
  for (let second = 0; second < DRIBBLE_SECONDS; second++) {
    for (const socket of dribbling) if (!socket.destroyed) socket.write('a');
    await sleep(systemClock, 1_000);
  }
  const grownKb = residentKb(server.pid) - beforeKb;
  const finished = trainer.results.size - finishedBefore;
  const cutOff = dribbling.filter((socket) => socket.destroyed || socket.readableEnded).length;
  for (const socket of sockets) socket.destroy();
  if (finished === 0) trainer.violations.push('no session finished while slow clients were connected');
  // The memory also grows a little because of normal traffic. The limit is large enough for this growth.
  if (grownKb > STUCK * MAX_KB_EACH) {
    trainer.violations.push(`the server grew by ${grownKb} KB under ${STUCK} stuck clients`);
  }
  if (cutOff < DRIBBLING) {
    const open = DRIBBLING - cutOff;
    trainer.violations.push(`${open} of ${DRIBBLING} dribbling clients were not cut off in ${DRIBBLE_SECONDS} s`);
  }
  return `${finished} sessions next to ${STUCK} stuck clients, ${(grownKb / STUCK).toFixed(1)} KB each`;
}
