import { environmentSchema } from '@floe-rl/core/schema';
import { z } from 'zod';

const MIB_PER_UNIT = { K: 1 / 1024, M: 1, G: 1024 } as const;

const seconds = z.number().gt(0);
const user = z.union([z.string().min(1), z.int().min(0)]).nullable();
const networkMode = z.enum(['public', 'no-network', 'allowlist']);
const network = {
  network_mode: networkMode.optional(),
  allowed_hosts: z.array(z.string().min(1)).optional(),
};

/** A size in the notation of the older layouts, such as `2G`. It is converted to MiB. */
const size = z
  .string()
  .regex(/^\d+(\.\d+)?[KMG]$/i, 'must be a number and one of K, M, G, such as 2G')
  .transform((text) => {
    const unit = text.slice(-1).toUpperCase() as keyof typeof MIB_PER_UNIT;
    return Math.floor(Number(text.slice(0, -1)) * MIB_PER_UNIT[unit]);
  });

const healthcheckSchema = z.strictObject({
  command: z.string().min(1),
  interval_sec: z.number().min(0).default(5),
  timeout_sec: seconds.default(30),
  start_period_sec: z.number().min(0).default(0),
  start_interval_sec: z.number().min(0).default(5),
  retries: z.int().min(1).default(3),
});
export type Healthcheck = z.output<typeof healthcheckSchema>;

const mcpServerSchema = z
  .strictObject({
    name: z.string().min(1),
    transport: z
      .enum(['stdio', 'sse', 'streamable-http', 'http'])
      .default('sse')
      .transform((transport) => (transport === 'streamable-http' ? 'http' : transport)),
    url: z.string().min(1).optional(),
    command: z.string().min(1).optional(),
    args: z.array(z.string()).default([]),
    headers: z.record(z.string(), z.string()).default({}),
  })
  .refine(({ transport, url }) => transport === 'stdio' || url !== undefined, {
    message: 'is required for this transport',
    path: ['url'],
  })
  .refine(({ transport, command }) => transport !== 'stdio' || command !== undefined, {
    message: 'is required for transport stdio',
    path: ['command'],
  });
export type HarborMcpServer = z.output<typeof mcpServerSchema>;

export const environmentConfigSchema = z.strictObject({
  ...network,
  build_timeout_sec: seconds.default(600),
  docker_image: z.string().min(1).optional(),
  os: z
    .string()
    .toLowerCase()
    .pipe(z.enum(['linux', 'windows']))
    .default('linux'),
  cpus: z.number().gt(0).optional(),
  memory_mb: z.int().min(1).optional(),
  memory: size.optional(),
  storage_mb: z.int().min(1).optional(),
  storage: size.optional(),
  gpus: z.int().min(0).optional(),
  gpu_types: z.array(z.string()).optional(),
  tpu: z.strictObject({ type: z.string().min(1), topology: z.string().min(1) }).optional(),
  mcp_servers: z.array(mcpServerSchema).default([]),
  env: environmentSchema.default({}),
  skills_dir: z.string().min(1).optional(),
  healthcheck: healthcheckSchema.optional(),
  workdir: z
    .string()
    .regex(/^\/(?!\/)[^\0]*$/, 'must be an absolute path')
    .refine((path) => !path.split('/').includes('..'), 'must not contain ..')
    .optional(),
  allow_internet: z.boolean().optional(),
});

export type EnvironmentConfig = z.output<typeof environmentConfigSchema>;

const phaseFields = { ...network, user: user.default(null) };

const artifactSchema = z.union([
  z
    .string()
    .min(1)
    .transform((source) => ({ source, exclude: [] as string[], service: 'main' })),
  z.strictObject({
    source: z.string().min(1),
    destination: z.string().min(1).optional(),
    exclude: z.array(z.string()).default([]),
    service: z.string().min(1).default('main'),
  }),
]);

const agentSchema = z.strictObject({ ...phaseFields, timeout_sec: seconds.optional() });

const verifierSchema = z.strictObject({
  ...phaseFields,
  timeout_sec: seconds.default(600),
  env: environmentSchema.default({}),
  environment_mode: z.enum(['shared', 'separate']).optional(),
  environment: environmentConfigSchema.optional(),
  collect: z
    .array(
      z.strictObject({
        command: z.string().min(1),
        service: z.string().min(1).default('main'),
        timeout_sec: seconds.default(60),
        user: user.default(null),
      }),
    )
    .default([]),
});

const stepSchema = z.strictObject({
  name: z
    .string()
    .regex(/^[^<>:"/\\|?*\p{Cc}]+$/u, 'must be the name of a folder')
    .refine((name) => name !== '.' && name !== '..' && !/[. ]$/.test(name), 'must be the name of a folder'),
  agent: agentSchema.prefault({}),
  verifier: verifierSchema.prefault({}),
  min_reward: z.union([z.number(), z.record(z.string(), z.number())]).optional(),
  healthcheck: healthcheckSchema.optional(),
  artifacts: z.array(artifactSchema).default([]),
});
export type StepConfig = z.output<typeof stepSchema>;

const packageSchema = z.strictObject({
  name: z.string().regex(/^[A-Za-z0-9_-][\w.-]*\/[A-Za-z0-9_-][\w.-]*$/, 'must be <organization>/<name>'),
  version: z.string().min(1).optional(),
  description: z.string().default(''),
  authors: z.array(z.strictObject({ name: z.string(), email: z.string().optional() })).default([]),
  keywords: z.array(z.string()).default([]),
});

/** The file `task.toml` of Harbor, schema versions 1.0 to 1.4. Templates such as `${NAME}` in its texts are not replaced. */
export const harborConfigSchema = z.strictObject({
  schema_version: z
    .string()
    .regex(/^1\.[0-4]$/, 'must be 1.0 to 1.4')
    .optional(),
  version: z
    .string()
    .regex(/^1\.[0-4]$/, 'must be 1.0 to 1.4')
    .optional(),
  source: z.string().optional(),
  task: packageSchema.optional(),
  metadata: z.record(z.string(), z.unknown()).default({}),
  agent: agentSchema.prefault({}),
  verifier: verifierSchema.prefault({}),
  environment: environmentConfigSchema.prefault({}),
  solution: z.strictObject({ env: environmentSchema.default({}) }).prefault({}),
  multi_step_reward_strategy: z.enum(['mean', 'final']).optional(),
  steps: z
    .array(stepSchema)
    .refine((steps) => new Set(steps.map(({ name }) => name.toLowerCase())).size === steps.length, {
      message: 'must have different names',
    })
    .default([]),
  artifacts: z.array(artifactSchema).default([]),
});
export type HarborConfig = z.output<typeof harborConfigSchema>;
