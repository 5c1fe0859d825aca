import { z } from 'zod';
import { dialectNameSchema } from './chat.ts';
import { metadataSchema } from './identifiers.ts';
import { environmentSchema } from './runtime.ts';

const mcpName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/, 'must be letters, digits, "_", "-"');

/** An MCP server whose tools the harness offers to the agent. The harness starts a `stdio` server itself, inside the sandbox. */
export const mcpServerSchema = z.discriminatedUnion('transport', [
  z.strictObject({
    name: mcpName,
    transport: z.literal('stdio'),
    command: z.string().min(1),
    args: z.array(z.string()).default([]),
    env: environmentSchema.default({}),
  }),
  z.strictObject({
    name: mcpName,
    transport: z.enum(['http', 'sse']),
    url: z.url({ protocol: /^https?$/ }),
    headers: z.record(z.string(), z.string()).default({}),
  }),
]);
export type McpServer = z.infer<typeof mcpServerSchema>;

/**
 * A skill: a folder of instructions that the agent may read. It contains `SKILL.md`, which has a name and a description, and the files to
 * which `SKILL.md` refers.
 */
export const skillSchema = z.strictObject({
  name: z.string().regex(/^[a-z0-9][a-z0-9-]{0,63}$/, 'must be lower-case letters, digits, "-"'),
  files: z
    .record(
      z
        .string()
        .regex(/^[A-Za-z0-9._-]+(\/[A-Za-z0-9._-]+)*$/, 'must be a relative path')
        .refine((path) => !path.split('/').some((part) => part === '.' || part === '..'), 'must not contain . or ..'),
      z.string(),
    )
    .refine((files) => 'SKILL.md' in files, 'needs a SKILL.md')
    .describe('content of each file by its path in the skill folder'),
});
export type Skill = z.infer<typeof skillSchema>;

/** A toolset of an agent of floe: its name, or its name with settings, which the toolset validates. */
export const toolSpecSchema = z.union([
  z
    .string()
    .min(1)
    .transform((name) => ({ name, config: {} })),
  z.strictObject({ name: z.string().min(1), config: metadataSchema.default({}) }),
]);
export type ToolSpec = z.output<typeof toolSpecSchema>;

/** The harnesses for which floe has rules that recognise the purpose and the agent thread of each model call. */
export const callRulesSchema = z.enum([
  'claude_code',
  'codex',
  'copilot_cli',
  'floe',
  'gemini_cli',
  'opencode',
  'pi',
  'qwen_code',
]);
export type CallRules = z.infer<typeof callRulesSchema>;

/**
 * Largest `max_recorded_mb`. A result contains the recorded data twice, in its traces and in its completions. A result of more than 320 MiB
 * cannot be delivered.
 */
const MAX_RECORDED_MB = 128;

export const agentSpecSchema = z.strictObject({
  harness: z
    .string()
    .min(1)
    .meta({ examples: ['pi'] }),
  dialect: dialectNameSchema
    .optional()
    .describe('wire format in which the harness calls the policy; default: the first one that the harness supports'),
  model_name: z
    .string()
    .min(1)
    .refine((name) => !name.includes('\0'), 'must not contain a NUL byte')
    .default('policy')
    .describe('model name that the harness is configured with; calls to the engine carry the name of its own model'),
  model_aliases: z
    .array(z.string().min(1))
    .default([])
    .describe('further model names that are routed to the policy, `*` for any; calls with other names are rejected'),
  env: environmentSchema.default({}),
  call_rules: callRulesSchema
    .optional()
    .describe(
      'harness whose rules label the purpose and the agent thread of each model call; default: the rules of `harness`, if it has any. For a `shell` command that starts one of these programs',
    ),
  settings: metadataSchema.default({}).describe('settings of the harness adapter, which validates them'),
  system_prompt: z.string().min(1).optional().describe("text that is appended to the harness's own system prompt"),
  max_turns: z
    .int()
    .min(1)
    .optional()
    .describe(
      'maximum number of model calls of the main agent; one more ends the session as `truncated_turns`. With a limit, calls of any kind together are limited to 256, or to 32 times this number if that is more',
    ),
  max_recorded_mb: z
    .number()
    .gt(0)
    .max(MAX_RECORDED_MB)
    .default(64)
    .describe(
      'maximum size in MiB of what is recorded of all model calls: messages, token ids, log-probabilities, routed experts, and each image once. A call whose request does not fit ends the session as `truncated_turns`',
    ),
  mcp_servers: z.array(mcpServerSchema).default([]),
  floe_tools: z
    .boolean()
    .default(false)
    .describe('whether the harness offers the tools of floe in the sandbox to the agent, as the MCP server `floe`'),
  skills: z.array(skillSchema).default([]),
  skills_path: z
    .string()
    .min(1)
    .optional()
    .describe("directory of skill folders on the node's host, below one of the node's upload roots"),
  custom_shell: z
    .string()
    .refine((command) => !command.includes('\0'), 'must not contain a NUL byte')
    .optional()
    .describe('command that the `shell` harness runs'),
});
export type AgentSpec = z.infer<typeof agentSpecSchema>;
