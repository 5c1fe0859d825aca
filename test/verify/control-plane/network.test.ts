import { beforeEach, describe, expect, it } from 'vitest';
import { Dice } from '../../../verify/control-plane/dice.ts';
import { GOOD_NETWORK, type Host, Network } from '../../../verify/control-plane/network.ts';
import { SimProcess } from '../../../verify/control-plane/sim-process.ts';
import { Timeline } from '../../../verify/control-plane/timeline.ts';

let timeline: Timeline;
let network: Network;
let caller: SimProcess;
let server: Host;
let asked: number;
beforeEach(() => {
  timeline = new Timeline();
  network = new Network(timeline, new Dice(7));
  caller = new SimProcess('caller', timeline);
  server = { name: 'server', process: new SimProcess('server', timeline) };
  asked = 0;
});

async function call(handle = async (_: AbortSignal): Promise<string> => 'answer'): Promise<string> {
  let outcome = 'nothing';
  const asking = (gone: AbortSignal): Promise<string> => {
    asked++;
    return handle(gone);
  };
  network.call(caller, { to: server, what: 'call', handle: asking }).then(
    (value) => {
      outcome = value;
    },
    (thrown: { code: string }) => {
      outcome = thrown.code;
    },
  );
  await timeline.run(() => false, timeline.nowMs + 20_000);
  return outcome;
}

describe('a call over the simulated network', () => {
  it('takes time and is answered', async () => {
    expect(await call()).toBe('answer');
  });

  it.each([
    ['a dropped request', { drop: 1 }, 0],
    ['a lost reply', { loseReply: 1 }, 1],
  ])('ends as unreachable after %s', async (_, fault, times) => {
    network.faults = { ...GOOD_NETWORK, ...fault };
    expect(await call()).toBe('peer_unreachable');
    expect(asked).toBe(times);
  });

  it('does its work twice when it is duplicated, and is answered once', async () => {
    network.faults = { ...GOOD_NETWORK, duplicate: 1 };
    expect(await call()).toBe('answer');
    expect(asked).toBe(2);
  });

  it('passes one way when only the other is cut, so that its effect is there without an answer', async () => {
    network.partition('server', 'caller', true);
    expect(await call()).toBe('peer_unreachable');
    expect(asked).toBe(1);
    network.heal();
    expect(await call()).toBe('answer');
  });

  it('breaks when the server is killed, and the server hears when the caller is', async () => {
    timeline.after(10, () => server.process?.kill());
    expect(await call(() => new Promise(() => {}))).toBe('peer_unreachable');
    server.process = new SimProcess('server', timeline);
    let told = false;
    timeline.after(10, () => caller.kill());
    const waiting = (gone: AbortSignal): Promise<string> =>
      new Promise(() => {
        gone.addEventListener('abort', () => {
          told = true;
        });
      });
    expect(await call(waiting)).toBe('nothing');
    expect(told).toBe(true);
  });
});
