// S8: the engine lies, fails, hangs or breaks off, in every way that the simulator knows, behind every dialect.
import { setTimeout as sleep } from 'node:timers/promises';
import { underTraffic } from '../traffic.mjs';

const KINDS = [
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

/** Lies that no client of the engine can see: what is trained is then what the engine said, and the ledger knows better. */
const UNDETECTABLE = new Set(['off_by_one_logprobs', 'foreign_ids']);

const MESSAGE = '{"role":"user","content":"Say something."}';
const DIALECTS = {
  openai_chat: ['/v1/chat/completions', `{"model":"policy","messages":[${MESSAGE}]}`],
  openai_chat_stream: ['/v1/chat/completions', `{"model":"policy","stream":true,"messages":[${MESSAGE}]}`],
  anthropic: ['/v1/messages', `{"model":"policy","max_tokens":200,"stream":true,"messages":[${MESSAGE}]}`],
  openai_responses: ['/v1/responses', `{"model":"policy","stream":true,"input":[${MESSAGE}]}`],
  gemini: [
    '/v1beta/models/policy:streamGenerateContent?alt=sse',
    '{"contents":[{"role":"user","parts":[{"text":"Say something."}]}]}',
  ],
};

function agent([path, body]) {
  const call = `curl -sf -m 30 "$FLOE_BASE_URL${path}" -H "authorization: Bearer $OPENAI_API_KEY" -H "x-api-key: $OPENAI_API_KEY" -H "anthropic-version: 2023-06-01" -H 'content-type: application/json' -d '${body}' > /dev/null`;
  return `${call}; ${call}; ${call}; true`;
}

export const lies = {
  id: 'S8',
  title: 'lying and failing engines, behind every dialect',
  runs: { full: KINDS.length * 5, quick: KINDS.length },
  stores: ['sqlite'],
  async run({ runs, random, progress }) {
    const options = { random, gateways: 1, feeder: { outstanding: 0, callbacks: false } };
    return underTraffic(options, async (world, trainer) => {
      const dialects = Object.entries(DIALECTS);
      for (let i = 0; i < runs; i++) {
        const kind = KINDS[i % KINDS.length];
        const [name, dialect] = dialects[Math.floor(i / KINDS.length + i) % dialects.length];
        progress.show(`S8 ${kind} behind ${name}`);
        world.sim.setFaults([{ kind, probability: 0.5, times: 6 }]);
        const { session_ids } = await trainer.submit(
          world.task({ num_samples: 3, timeout_seconds: 30, max_attempts: 2, agent: { custom_shell: agent(dialect) } }),
        );
        await settled(trainer, `${kind} behind ${name}`);
        if (UNDETECTABLE.has(kind)) for (const id of session_ids) trainer.believed.add(id);
      }
      world.sim.setFaults([]);
      return { runs };
    });
  },
};

async function settled(trainer, what) {
  for (const deadline = performance.now() + 60_000; trainer.outstanding().length > 0; await sleep(20)) {
    if (performance.now() < deadline) continue;
    trainer.wrongs.push(`${what}: ${trainer.outstanding().length} sessions did not end within 60 s`);
    return;
  }
}
