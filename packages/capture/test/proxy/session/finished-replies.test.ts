import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { FINISH_GRACE_MS } from '../../../src/engines/engine-server.ts';
import { ABANDON_GRACE_MS } from '../../../src/proxy/session/call.ts';
import { DERENDER, GENERATE, serveTokens } from '../../engines/vllm/scripted-tokens.ts';
import { Rig, until, WatchedClock } from '../rig.ts';

let rig: Rig;
let clock: WatchedClock;
let key: string;
let parse: () => void;
let parsing: Promise<void>;

beforeEach(async () => {
  clock = new WatchedClock();
  rig = await Rig.start(clock, undefined, (server) => serveTokens(server));
  key = rig.key();
  const derender = rig.server.routes[DERENDER];
  // The server parses the sampled ids only after the test has called `parse`.
  parsing = new Promise((begun) => {
    rig.server.routes[DERENDER] = async (received) => {
      begun();
      await new Promise<void>((resolve) => {
        parse = resolve;
      });
      await derender?.(received);
    };
  });
});
afterEach(async () => {
  parse();
  await rig.stop();
});

/** Starts a call, and disconnects its client after the engine has sampled the reply and while its server parses the ids. */
async function disconnectDuringParsing() {
  const session = await rig.open({ key });
  const noticed = clock.scheduled(ABANDON_GRACE_MS);
  const sent = rig.chat(key);
  await parsing;
  sent.abort();
  await noticed;
  clock.advance(ABANDON_GRACE_MS);
  return session;
}

describe('a reply that was sampled completely before its client disconnected', () => {
  it('is recorded as undelivered, because its message is parsed to the end', async () => {
    const session = await disconnectDuringParsing();
    parse();
    await until(() => session.runningCalls === 0);
    expect(session.completions()).toMatchObject([{ undelivered: true, message: { content: 'Hello.' } }]);
    expect(rig.server.received.filter(({ path }) => path === GENERATE)).toHaveLength(1);
  });

  it('is recorded before the session ends', async () => {
    const session = await disconnectDuringParsing();
    const closing = session.close();
    parse();
    await closing;
    expect(session.completions()).toHaveLength(1);
  });

  it('is given up when the server does not parse it in time', async () => {
    const session = await disconnectDuringParsing();
    clock.advance(FINISH_GRACE_MS);
    await until(() => session.runningCalls === 0);
    expect(session.completions()).toEqual([]);
  });
});
