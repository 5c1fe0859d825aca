import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import type { SimServer } from '@floe-rl/sim';

type SampleBody = {
  readonly id: string;
  readonly tokens: readonly number[];
  readonly max_tokens: number;
  readonly temperature: number;
  readonly top_p: number;
  readonly seed: number | null;
  readonly end: readonly number[];
  readonly stop: readonly string[];
};

/** A reply of the simulated engine's `/inference/v1/generate`. */
type Generated = {
  choices: [{ token_ids: number[]; logprobs: { content: { logprob: number }[] }; finish_reason: string }];
};

/** A small inference server with an API of its own, which the example examples/engines/small-server.ts calls. A simulated engine samples. */
export class SmallServer {
  /** Changes a reply before it is sent. */
  spoil: (reply: Record<string, unknown>) => unknown = (reply) => reply;
  /** Status of every reply. */
  status = 200;
  version: string | null = 'step-1';
  private readonly server: Server;
  private readonly sim: SimServer;

  constructor(sim: SimServer) {
    this.sim = sim;
    this.server = createServer(async (request, response) => {
      try {
        const reply = await this.answer(request);
        response.writeHead(this.status, { 'content-type': 'application/json' }).end(JSON.stringify(reply));
      } catch (error) {
        response.writeHead(500).end(JSON.stringify({ error: { message: String(error) } }));
      }
    });
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.server.listen(0, '127.0.0.1', resolve));
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private async answer(request: IncomingMessage): Promise<unknown> {
    if (request.url === '/model') return { name: 'small', context: 4096 };
    if (request.url === '/weights') return { version: this.version };
    return this.spoil(await this.sample((await json(request)) as SampleBody));
  }

  private async sample({ id, tokens, end, stop, ...params }: SampleBody): Promise<Record<string, unknown>> {
    const response = await fetch(`${this.sim.url}/inference/v1/generate`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        request_id: id,
        token_ids: tokens,
        sampling_params: { ...params, logprobs: 0, stop, stop_token_ids: end },
      }),
    });
    if (!response.ok) throw new Error(await response.text());
    const [choice] = ((await response.json()) as Generated).choices;
    return {
      tokens: choice.token_ids,
      logprobs: choice.logprobs.content.map(({ logprob }) => logprob),
      reason: choice.finish_reason === 'length' ? 'limit' : 'end',
    };
  }
}
