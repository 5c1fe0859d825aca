import { FloeError } from '../../src/core/errors.ts';
import type { CallbackTransport } from '../../src/rollout/callbacks/transport.ts';
import type { SimProcess } from './sim-process.ts';
import type { Trainer } from './trainer.ts';
import type { World } from './world.ts';

/** Callbacks over the simulated network: `http://127.0.0.1/<trainer>`. */
export function callbackTransport(
  { network }: World,
  life: SimProcess,
  trainers: ReadonlyMap<string, Trainer>,
): CallbackTransport {
  return {
    async post({ url, headers, body, signal }) {
      const chunks: Buffer[] = [];
      for await (const chunk of body) chunks.push(chunk);
      const text = Buffer.concat(chunks).toString();
      const trainer = trainers.get(new URL(url).pathname.slice(1));
      if (trainer === undefined) throw new FloeError('peer_unreachable', `nobody listens at ${url}`);
      return network.call(life, {
        to: trainer.host,
        what: 'callback',
        signal,
        handle: (gone) => trainer.callback(headers, text, gone),
      });
    },
    async close() {},
  };
}
