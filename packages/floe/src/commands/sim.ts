import { loadScenarios, SIM_FACES, type SimFace, startSim } from '@floe-rl/sim';
import type { Command } from 'commander';
import { waitForSignal } from './lifetime.ts';
import { listed } from './options.ts';
import { printJson, printLine } from './print.ts';

type Options = {
  host: string;
  port: string;
  scenario: string[];
  slots: string;
  delay: string;
  ledger?: string;
  face: SimFace;
  scaleOut: boolean;
  speed: string;
  prefillDelay: string;
  json?: boolean;
};

export function registerSim(program: Command): void {
  program
    .command('sim')
    .description('run a simulated inference engine with exact log-probabilities and a ledger; it needs no GPU')
    .option('--host <host>', 'address to listen on', '127.0.0.1')
    .option('--port <port>', 'port to listen on; 0 chooses a free one', '8090')
    .option('--face <api>', `API to simulate: ${listed(SIM_FACES)}`, 'vllm')
    .option('--no-scale-out', 'simulate a vLLM without the endpoints that accept token ids')
    .option('--scenario <file...>', 'files with scenarios of the scripted policy', [])
    .option('--slots <n>', 'maximum number of requests that are sampled concurrently', '64')
    .option('--delay <ms>', 'time per sampled token', '0')
    .option('--prefill-delay <ms>', 'time per prompt token that is not in the cache', '0')
    .option('--speed <factor>', 'speed factor; 0.5 is half as fast', '1')
    .option('--ledger <file>', 'file to append every sampled call to')
    .option('--json', 'print JSON')
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
      if (options.json) printJson({ url: sim.url });
      else
        printLine(
          `simulated engine: ${sim.url}  (${options.face === 'sglang' ? 'SGLang' : 'vLLM'}'s API; ledger at ${sim.url}/__sim/ledger)`,
        );
      await waitForSignal();
      await sim.close();
    });
}
