import { z } from 'zod';

/** Longest value of an environment variable in bytes. Linux limits each variable to 128 KiB, including its name, `=` and a NUL byte. */
const MAX_VARIABLE_BYTES = 128 * 1024 - 256;

/**
 * Largest `max_output_mb`. The output of a command becomes a text, and Node cannot create texts of 512 MiB or more: an agent that printed
 * that much would make the node fail.
 */
const MAX_OUTPUT_MB = 256;

/**
 * Environment variables of a command. Invalid names and too long values are rejected at submission, because otherwise the command would
 * fail when it is started.
 */
export const environmentSchema = z.record(
  z.string().regex(/^[A-Za-z_][A-Za-z0-9_]{0,250}$/, 'must be the name of an environment variable'),
  z
    .string()
    .refine((value) => !value.includes('\0'), 'must not contain a NUL byte')
    .refine(
      (value) => Buffer.byteLength(value) <= MAX_VARIABLE_BYTES,
      `must not be longer than ${MAX_VARIABLE_BYTES} bytes`,
    ),
);

export const runtimeBackendSchema = z.enum(['bubblewrap', 'docker', 'podman', 'apptainer', 'local', 'none']);
export type RuntimeBackend = z.infer<typeof runtimeBackendSchema>;

/** The only user of a sandbox, by back end, where commands cannot run as another user. */
export const ONLY_USERS: Partial<Record<RuntimeBackend, string>> = { bubblewrap: 'agent', apptainer: 'root' };

/** Name or number of a user of an image. */
export const imageUserSchema = z.union([
  z.string().regex(/^[A-Za-z_][A-Za-z0-9_.-]*$/, 'must be the name of a user'),
  z.int().min(0).max(0xffff_fffe),
]);

/** What separates the commands of a session from the machine. */
export const isolationSchema = z
  .enum(['none', 'namespaces', 'container'])
  .describe(
    "none: nothing; namespaces: Linux namespaces of a user without rights on the machine; container: a container engine's container",
  );
export type Isolation = z.infer<typeof isolationSchema>;

const retries = {
  max_attempts: z.int().min(1).max(10).default(1),
  retry_backoff_seconds: z.number().min(0).max(60).default(0.5),
};

/** One step of preparing a runtime. A `target` is a path in the sandbox; a relative path is below the workdir. */
export const prepareActionSchema = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('write_file'),
    target: z.string().min(1),
    content: z.string(),
    mode: z.int().min(0).max(0o777).default(0o644),
  }),
  z.strictObject({
    type: z.literal('upload_file'),
    source: z.string().min(1).describe("path on the node's host, below one of the node's upload roots"),
    target: z.string().min(1),
  }),
  z.strictObject({
    type: z.literal('upload_dir'),
    source: z.string().min(1).describe("path on the node's host, below one of the node's upload roots"),
    target: z.string().min(1).default('.'),
  }),
  z.strictObject({
    type: z.literal('prune_git_history'),
    repo: z
      .string()
      .min(1)
      .default('.')
      .describe('path of a git repository, of which only HEAD, its ancestors and their tags are kept'),
  }),
  z.strictObject({
    type: z.literal('exec'),
    command: z.string().min(1),
    cwd: z.string().optional(),
    env: environmentSchema.default({}),
    user: z
      .enum(['agent', 'root'])
      .default('agent')
      .describe('`agent`: the user of the sandbox; `root`: root, where the sandbox has more than one user'),
    ...retries,
  }),
]);
export type PrepareAction = z.infer<typeof prepareActionSchema>;

/** A host that sandboxes may reach: a name, `*.` and a name, or an address, with an optional port. */
export const hostPatternSchema = z
  .string()
  .max(300)
  .regex(/^(\*\.)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?$/, 'must be a host, with an optional port');

const workdirSchema = z
  .string()
  .regex(/^\/(?!\.\.?(\/|$))[^\0]+$/, 'must be an absolute path below the root')
  .refine((path) => !path.split('/').includes('..'), 'must not contain ..');
const memorySchema = z.int().min(16);
const cpusSchema = z.number().gt(0).nullable();
const storageSchema = z.int().min(1);

/**
 * Settings of the evaluator's fresh runtime that replace the settings of the agent's runtime. With another image, it runs as the user of that
 * image.
 */
const evalOverridesSchema = z.strictObject({
  image: z.string().optional(),
  workdir: workdirSchema.optional(),
  env: environmentSchema.optional(),
  memory_mb: memorySchema.optional(),
  cpus: cpusSchema.optional(),
  storage_mb: storageSchema.optional(),
});
const shellCommandSchema = z
  .string()
  .min(1)
  .refine((command) => !command.includes('\0'), 'must not contain a NUL byte');

/** How a node uses one sandbox for several sessions, one after the other. */
const reuseSchema = z
  .strictObject({
    max_uses: z.int().min(1).max(1_000_000).default(100).describe('most sessions for which one sandbox is used'),
    restore: z
      .enum(['all', 'workdir', 'none'])
      .default('all')
      .describe(
        'files that are restored after each session, to their state after the prepare actions: all; at least those of the workdir; or none, so that the reset command must remove what a session left',
      ),
    reset_command: shellCommandSchema
      .nullable()
      .default(null)
      .describe('run by /bin/sh after each session, after the files were restored and the services started'),
    services: z
      .array(shellCommandSchema)
      .max(32)
      .default([])
      .describe(
        'commands, each run by /bin/sh, that run as long as the sandbox is used; with `restore: none` through all sessions, otherwise they are restarted after each',
      ),
    health_command: shellCommandSchema
      .nullable()
      .default(null)
      .describe('run by /bin/sh until it exits with 0, before a session gets the sandbox; null: `true`'),
    timeout_seconds: z
      .number()
      .gt(0)
      .max(3600)
      .default(60)
      .describe('longest time of a reset, and also of the health check after it'),
  })
  .refine(({ restore, reset_command }) => restore !== 'none' || reset_command !== null, {
    path: ['reset_command'],
    message: 'is needed with `restore: none`',
  });
export type RuntimeReuse = z.infer<typeof reuseSchema>;

/** The sandbox in which a session runs. */
export const runtimeSpecSchema = z
  .strictObject({
    backend: runtimeBackendSchema.optional().describe("sandbox implementation; default: the node's setting"),
    image: z
      .string()
      .nullable()
      .default(null)
      .describe(
        "image of a registry; bubblewrap and apptainer also take a directory on the node's host, apptainer a SIF file, and bubblewrap null for the host's /usr, read-only",
      ),
    workdir: workdirSchema.default('/work').describe('working directory of the harness; ignored by the local backend'),
    user: imageUserSchema
      .nullable()
      .default(null)
      .describe(
        "name or number of the user of the image that runs the agent and the prepare actions and owns their files; null for the image's own user with docker and podman, and for the only user of a sandbox otherwise",
      ),
    prepare: z.array(prepareActionSchema).default([]),
    eval_prepare: z
      .array(prepareActionSchema)
      .nullable()
      .default(null)
      .describe("prepare actions for the evaluator's fresh runtime; null uses `prepare`"),
    eval_overrides: evalOverridesSchema
      .default({})
      .describe(
        "settings of the evaluator's fresh runtime that replace those of the agent's; with another image, it has the user of that image",
      ),
    share_prepared: z
      .boolean()
      .default(false)
      .describe(
        'whether the node may run the prepare actions once and start further sandboxes with equal settings from a snapshot of the prepared files',
      ),
    reuse: reuseSchema
      .nullable()
      .default(null)
      .describe("null: each session gets a new sandbox. The evaluator's fresh runtime is always new"),
    env: environmentSchema.default({}),
    network: z
      .enum(['none', 'proxy', 'allowlist', 'host'])
      .default('none')
      .describe(
        "none: only the session's model; proxy: HTTP and HTTPS to all hosts that the node allows; allowlist: to those in `allowed_hosts`; host: the network of the node's host",
      ),
    allowed_hosts: z
      .array(hostPatternSchema)
      .max(1000)
      .default([])
      .describe(
        'for network allowlist: names (`pypi.org`), names with everything below them (`*.pypi.org`) or addresses, each with an optional port (default: 80 and 443)',
      ),
    memory_mb: memorySchema.default(4096),
    cpus: cpusSchema.default(null),
    storage_mb: storageSchema.default(1024),
    max_processes: z.int().min(1).default(512),
    max_file_mb: z.int().min(1).default(512),
    max_output_mb: z
      .number()
      .gt(0)
      .max(MAX_OUTPUT_MB)
      .default(16)
      .describe('most MiB of output that are kept of one command; the rest is counted and dropped'),
  })
  .superRefine(({ network, allowed_hosts }, context) => {
    if ((network === 'allowlist') === allowed_hosts.length > 0) return;
    const message = network === 'allowlist' ? 'must name a host' : 'is only for network allowlist';
    context.addIssue({ code: 'custom', path: ['allowed_hosts'], message });
  });
export type RuntimeSpec = z.infer<typeof runtimeSpecSchema>;
