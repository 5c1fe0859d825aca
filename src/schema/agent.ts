import { z } from 'zod';
import { dialectNameSchema } from './chat.ts';
import { metadataSchema } from './identifiers.ts';
import { environmentSchema } from './runtime.ts';

const mcpName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/, 'must be letters, digits, "_", "-"');

/** A tool server that the harness talks to; `stdio` ones are started by the harness, inside the sandbox. */
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

/** A folder of instructions that the harness may read: `SKILL.md` with a name and a description, and what it refers to. */
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
    .describe('text by path'),
});
export type Skill = z.infer<typeof skillSchema>;

export const agentSpecSchema = z.strictObject({
  harness: z.string().min(1),
  dialect: dialectNameSchema
    .optional()
    .describe('what the harness speaks to the policy; default: the first that it can'),
  model_name: z
    .string()
    .min(1)
    .refine((name) => !name.includes('\0'), 'must not contain a NUL byte')
    .default('policy')
    .describe('the name that the harness is told; the engine gets its own'),
  model_aliases: z
    .array(z.string().min(1))
    .default([])
    .describe('further model names that reach the policy; `*` for any. Other names are refused'),
  env: environmentSchema.default({}),
  settings: metadataSchema.default({}).describe("the harness adapter's own settings, checked by it"),
  system_prompt: z.string().min(1).optional().describe("added to the harness's own system prompt"),
  max_turns: z
    .int()
    .min(1)
    .optional()
    .describe(
      'model calls of the main agent; the next one ends the session as `truncated_turns`. All calls together: 256, or 32 times as many',
    ),
  mcp_servers: z.array(mcpServerSchema).default([]),
  skills: z.array(skillSchema).default([]),
  skills_path: z
    .string()
    .min(1)
    .optional()
    .describe("directory of skill folders on the node's host, below one of its upload roots"),
  custom_shell: z
    .string()
    .refine((command) => !command.includes('\0'), 'must not contain a NUL byte')
    .optional()
    .describe('the command of the `shell` harness'),
});
export type AgentSpec = z.infer<typeof agentSpecSchema>;
