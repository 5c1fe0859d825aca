import type { Command } from 'commander';
import { loadScenarios, startSim } from '../sim/index.ts';
import { waitForSignal } from './lifetime.ts';
import { json, line } from './print.ts';

type Options = {
  host: string;
  port: string;
  scenario: string[];
  slots: string;
  delay: string;
  ledger?: string;
  face: 'vllm' | 'sglang';
  scaleOut: boolean;
  speed: string;
  prefillDelay: string;
  json?: boolean;
};

export function registerSim(program: Command): void {
  program
    .command('sim')
    .description('a simulated inference engine with true logprobs and a ledger; needs no GPU')
    .option('--host <host>', 'address to listen on', '127.0.0.1')
    .option('--port <port>', '0 picks a free one', '8090')
    .option('--face <api>', 'whose API it speaks: vllm or sglang', 'vllm')
    .option('--no-scale-out', 'a vLLM without the endpoints that take token ids')
    .option('--scenario <file...>', 'what the scripted policy does', [])
    .option('--slots <n>', 'requests sampled at once', '64')
    .option('--delay <ms>', 'time per token', '0')
    .option('--prefill-delay <ms>', 'time per prompt token that is not cached', '0')
    .option('--speed <factor>', '0.5: half as fast', '1')
    .option('--ledger <file>', 'append every sampled call to this file')
    .option('--json', 'machine-readable output')
    .action(async (options: Options) => {
      const sim = await startSim({
        host: options.host,
        port: Number(options.port),
        scenarios: await loadScenarios(options.scenario),
        maxNumSeqs: Number(options.slots),
        tokenDelayMs: Number(options.delay),
        prefillTokenDelayMs: Number(options.prefillDelay),
        speed: Number(options.speed),
        face: options.face,
        scaleOut: options.scaleOut,
        ...(options.ledger === undefined ? {} : { ledgerFile: options.ledger }),
      });
      if (options.json) json({ url: sim.url });
      else
        line(
          `simulated engine: ${sim.url}  (${options.face === 'sglang' ? 'SGLang' : 'vLLM'}'s API; ledger at ${sim.url}/__sim/ledger)`,
        );
      await waitForSignal();
      await sim.close();
    });
}
