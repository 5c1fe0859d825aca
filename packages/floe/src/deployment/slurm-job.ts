import { z } from 'zod';

/**
 * Schema of a value in an `#SBATCH` line. Quotes and escapes are refused, because Slurm treats them specially in such lines and no useful
 * value needs them.
 */
const valueSchema = z
  .string()
  .max(512)
  .regex(/^[A-Za-z0-9_.,:=+@%/&|()[\]*!~-]+$/, 'must not contain spaces, quotes, "$", "#" or other special characters');

/** Schema of the Slurm options for each job of one kind; an option is `null` to keep Slurm's default. */
export const slurmJobSchema = z.strictObject({
  partition: valueSchema.nullable().default(null),
  account: valueSchema.nullable().default(null),
  qos: valueSchema.nullable().default(null),
  constraint: valueSchema.nullable().default(null).describe('features that hosts must have'),
  reservation: valueSchema.nullable().default(null),
  nodelist: valueSchema.nullable().default(null).describe('hosts to use'),
  exclude: valueSchema.nullable().default(null).describe('hosts not to use'),
  time: z
    .string()
    .regex(/^(\d+-)?\d+(:\d{1,2}){0,2}$/, 'must be a time as Slurm writes it, such as 30, 4:00:00 or 1-12:00:00')
    .nullable()
    .default(null)
    .describe('time limit, such as 4:00:00'),
  cpus: z.int().min(1).nullable().default(null).describe('`--cpus-per-task`'),
  memory: z
    .string()
    .regex(/^\d+[KMGT]?$/, 'must be a size such as 64G')
    .nullable()
    .default(null)
    .describe('`--mem`, such as 64G'),
  gres: valueSchema.nullable().default(null).describe('generic resources, such as gpu:8'),
  exclusive: z.boolean().default(false).describe('whether a job gets the whole host'),
  sbatch: z
    .array(
      z.string().regex(/^--[a-z][a-z-]*(=[A-Za-z0-9_.,:=+@%/&|()[\]*!~-]+)?$/, 'must be --option or --option=value'),
    )
    .default([])
    .describe('additional options of sbatch, such as --licenses=data'),
});
export type SlurmJob = z.infer<typeof slurmJobSchema>;

/**
 * Returns the options of one job. An option that `own` does not set is taken from `shared`. The additional sbatch options of `shared` and
 * `own` are joined.
 */
export function mergeJobs(shared: SlurmJob, own: SlurmJob): SlurmJob {
  const overrides = Object.entries(own).filter(([, value]) => value !== null && value !== false);
  return { ...shared, ...Object.fromEntries(overrides), sbatch: [...shared.sbatch, ...own.sbatch] };
}

/** Returns the `#SBATCH` lines for a job's options. */
export function resourceLines(job: SlurmJob): string[] {
  const valued: readonly (readonly [string, string | number | null])[] = [
    ['partition', job.partition],
    ['account', job.account],
    ['qos', job.qos],
    ['constraint', job.constraint],
    ['reservation', job.reservation],
    ['nodelist', job.nodelist],
    ['exclude', job.exclude],
    ['time', job.time],
    ['cpus-per-task', job.cpus],
    ['mem', job.memory],
    ['gres', job.gres],
  ];
  return [
    ...valued.flatMap(([name, value]) => (value === null ? [] : [`#SBATCH --${name}=${value}`])),
    ...(job.exclusive ? ['#SBATCH --exclusive'] : []),
    ...job.sbatch.map((option) => `#SBATCH ${option}`),
  ];
}
