import type { FaultKind } from '@floe-rl/sim';
import { until } from '../../runner/until.ts';
import { underTraffic } from '../traffic.ts';
import type { Suite } from './suite.ts';

const KINDS: readonly FaultKind[] = [
  'http_400_context',
  'http_429',
  'http_500',
  'http_503',
  'reset_before',
  'reset_mid',
  'abort',
  'missing_ids',
  'logprobs_length',
  'logprob_nan',
  'logprob_null',
  'logprob_positive',
  'usage_mismatch',
  'off_by_one_logprobs',
  'echo_other_prompt',
  'dies_mid_stream',
  'slow',
  'foreign_ids',
  'error_body_200',
  'garbage',
  'stream_lost_ids',
  'duplicate_call_ids',
  'chunk_split',
  'malformed_tool_call',
];

/**
 * Engine faults that no client of the engine can detect. With these faults, the trained tokens equal the tokens that the engine reported, but
 * not the tokens in its ledger, which it really sampled.
 */
const UNDETECTABLE: readonly FaultKind[] = ['off_by_one_logprobs', 'foreign_ids'];

const MESSAGE = '{"role":"user","content":"Say something."}';

type WireCall = { readonly name: string; readonly path: string; readonly body: string };

const CALLS: readonly WireCall[] = [
  { name: 'openai_chat', path: '/v1/chat/completions', body: `{"model":"policy","messages":[${MESSAGE}]}` },
  {
    name: 'openai_chat_stream',
    path: '/v1/chat/completions',
    body: `{"model":"policy","stream":true,"messages":[${MESSAGE}]}`,
  },
  {
    name: 'anthropic',
    path: '/v1/messages',
    body: `{"model":"policy","max_tokens":200,"stream":true,"messages":[${MESSAGE}]}`,
  },
  { name: 'openai_responses', path: '/v1/responses', body: `{"model":"policy","stream":true,"input":[${MESSAGE}]}` },
  {
    name: 'gemini',
    path: '/v1beta/models/policy:streamGenerateContent?alt=sse',
    body: '{"contents":[{"role":"user","parts":[{"text":"Say something."}]}]}',
  },
];

/** Returns the shell command of an agent that makes the same model call three times and exits with 0 whatever the replies are. */
function agentCommand({ path, body }: WireCall): string {
  const call = `curl -sf -m 30 "$FLOE_BASE_URL${path}" -H "authorization: Bearer $OPENAI_API_KEY" -H "x-api-key: $OPENAI_API_KEY" -H "anthropic-version: 2023-06-01" -H 'content-type: application/json' -d '${body}' > /dev/null`;
  return `${call}; ${call}; ${call}; true`;
}

/**
 * Suite S8: the engine returns wrong data, fails, hangs or disconnects, in every way that the simulated engine supports and with agents of
 * every API dialect.
 */
export const lies: Suite = {
  id: 'S8',
  title: 'lying and failing engines, under every dialect',
  runs: { full: KINDS.length * CALLS.length, quick: KINDS.length },
  stores: ['sqlite'],
  async run({ runs, random, progress }) {
    const options = { random, gateways: 1, feeder: { outstanding: 0, callbacks: false } };
    return underTraffic(options, async (service, trainer) => {
      for (let i = 0; i < runs; i++) {
        const kind = KINDS[i % KINDS.length];
        const call = CALLS[(Math.floor(i / KINDS.length) + i) % CALLS.length];
        if (kind === undefined || call === undefined) throw new Error('the tables are empty');
        const name = `${kind} under ${call.name}`;
        progress.show(`S8 ${name}`);
        service.sim.setFaults([{ kind, probability: 0.5, times: 6 }]);
        const agent = { harness: 'shell', custom_shell: agentCommand(call), env: { FLOE_FAULT_MARK: service.mark } };
        const { session_ids } = await trainer.submit(
          service.task({ num_samples: 3, timeout_seconds: 30, max_attempts: 2, agent }),
        );
        if (!(await until(() => trainer.outstanding().length === 0, 60_000))) {
          trainer.violations.push(`${name}: ${trainer.outstanding().length} sessions did not end within 60 s`);
        }
        if (UNDETECTABLE.includes(kind)) for (const id of session_ids) trainer.undetectable.add(id);
      }
      service.sim.setFaults([]);
      return { runs };
    });
  },
};
