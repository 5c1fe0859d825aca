import type { Denial } from './denials.ts';

const RESPONSES = 'packages/capture/src/dialects/openai_responses/dialect.ts';

/** What the pages state that floe does not have or accept, with the facts that prove it. */
export const KNOWN_DENIALS: readonly Denial[] = [
  {
    page: 'docs/engines-llama-cpp.md',
    says: 'Any other name is `unsupported`',
    proofs: [
      {
        in: 'packages/capture/src/engines/chat/hermes.ts',
        has: 'Throws `unsupported` for a parser other than the known one',
      },
      { in: 'packages/capture/test/engines/llama-cpp/engine.test.ts', has: 'are rejected when they force a tool call' },
    ],
  },
  {
    page: 'docs/engines-llama-cpp.md',
    says: '501 is `unsupported`',
    proofs: [
      {
        in: 'packages/capture/src/engines/engine-server.ts',
        has: "if (status === 501) return this.error('unsupported'",
      },
    ],
  },
  {
    page: 'docs/engines-openai.md',
    says: 'Counting tokens, rendering, prompts as ids and pausing are `unsupported`',
    proofs: ['accepts no token ids', 'does not count tokens', 'does not render messages', 'cannot be paused'].map(
      (message) => ({ in: 'packages/capture/src/engines/openai/engine.ts', has: `the API ${message}` }),
    ),
  },
  {
    page: 'docs/engines-tinker.md',
    says: 'Images are `unsupported`',
    proofs: [{ in: 'packages/capture/test/engines/tinker/engine.test.ts', has: 'with images are unsupported' }],
  },
  {
    page: 'docs/engines-tinker.md',
    says: 'Where neither is known the call is `unsupported`',
    proofs: [
      {
        in: 'packages/capture/test/engines/tinker/engine.test.ts',
        has: 'need a limit when the context length is unknown',
      },
    ],
  },
  {
    page: 'docs/engines-tinker.md',
    says: 'and `repetition_penalty` are `unsupported`',
    proofs: [{ in: 'packages/capture/src/engines/tinker/request.ts', has: 'its API has no field for' }],
  },
  {
    page: 'docs/environment-groups.md',
    says: 'other resolvers, circles and missing paths are refused there',
    proofs: [
      { in: 'packages/agents/test/environments/groups/interpolate.test.ts', has: 'is a variable of the environment' },
    ],
  },
  {
    page: 'docs/evaluators-tests.md',
    says: '`refresh_runtime: false` is refused',
    proofs: [{ in: 'packages/evaluators/src/code-tests-config.ts', has: 'code_tests needs a fresh runtime' }],
  },
  {
    page: 'docs/guides/from-roll.md',
    says: "ROLL's `tool_wrapper` is refused",
    proofs: [{ in: 'python/tests/test_run_job.py', has: 'assertRaisesRegex(NotImplementedError, "tool_wrapper")' }],
  },
  {
    page: 'docs/guides/use-an-sdk.md',
    says: '`n` above 1 is refused',
    proofs: [{ in: 'packages/capture/src/dialects/openai_chat/request.ts', has: 'n: only one choice' }],
  },
  {
    page: 'docs/harness-settings.md',
    says: 'MCP servers, skills, `system_prompt` and compaction are not supported',
    proofs: [{ in: 'packages/node/src/harnesses/mini-swe-agent.ts', has: 'features: []' }],
  },
  {
    page: 'docs/harness-settings.md',
    says: '`system_prompt` is not supported',
    proofs: [{ in: 'packages/node/src/harnesses/openhands.ts', has: "features: ['mcp_servers']" }],
  },
  {
    page: 'docs/limits.md',
    says: 'Prompts of token ids with images',
    proofs: [
      {
        in: 'packages/capture/src/engines/vllm/rendering.ts',
        has: 'messages with images cannot be given as token ids',
      },
    ],
  },
  {
    page: 'docs/limits.md',
    says: 'Pixels in exports',
    proofs: [{ in: 'packages/data/src/trainers', lacks: 'pixel_values' }],
  },
  {
    page: 'docs/limits.md',
    says: 'A computer that is more than a browser',
    proofs: [{ missing: 'packages/sandbox/src/box/desktop' }],
  },
  {
    page: 'docs/limits.md',
    says: 'Retrieval of stored responses and conversations of the Responses API',
    proofs: [{ in: RESPONSES, lacks: "method: 'GET'" }],
  },
  {
    page: 'docs/limits.md',
    says: 'Separation of trainers',
    proofs: [{ in: 'packages/core/src/schema/task.ts', lacks: 'owner' }],
  },
  {
    page: 'docs/limits.md',
    says: '`n` above 1 is refused',
    proofs: [{ in: 'packages/capture/src/dialects/openai_chat/request.ts', has: 'n: only one choice' }],
  },
  {
    page: 'docs/proxy-dialects.md',
    says: 'there is no `GET /v1/responses/{id}`',
    proofs: [
      { in: RESPONSES, lacks: "method: 'GET'" },
      { in: RESPONSES, lacks: '/cancel' },
      { in: RESPONSES, lacks: '/compact' },
    ],
  },
  {
    page: 'docs/remote-environments.md',
    says: 'Servers with tools over MCP only are not supported',
    proofs: [{ in: 'packages/agents/src/environments/remote/nemo-gym.ts', lacks: '/mcp' }],
  },
  {
    page: 'docs/sim-sglang.md',
    says: 'there are no batches',
    proofs: [{ in: 'packages/sim/test/sglang', has: 'n above 1' }],
  },
  {
    page: 'docs/trainer-formats.md',
    says: 'There is no column in `trl`, `skyrl` and `verl_batch`',
    proofs: ['skyrl', 'openrlhf'].map((format) => ({
      in: `packages/data/src/trainers/formats/${format}.ts`,
      lacks: 'advantage',
    })),
  },
];
