import { z } from 'zod';

/** Slurm reads `#SBATCH` lines with rules of its own for quotes and escapes; no value that is of use needs any of them. */
const valueSchema = z
  .string()
  .max(512)
  .regex(/^[A-Za-z0-9_.,:=+@%/&|()[\]*!~-]+$/, 'must not hold spaces, quotes, "$", "#" or other special characters');

/** What Slurm is asked for, for each job of one kind. Null: as the cluster has it. */
export const slurmJobSchema = z.strictObject({
  partition: valueSchema.nullable().default(null),
  account: valueSchema.nullable().default(null),
  qos: valueSchema.nullable().default(null),
  constraint: valueSchema.nullable().default(null).describe('features that the hosts must have'),
  reservation: valueSchema.nullable().default(null),
  nodelist: valueSchema.nullable().default(null).describe('hosts to take'),
  exclude: valueSchema.nullable().default(null).describe('hosts to leave alone'),
  time: z
    .string()
    .regex(/^(\d+-)?\d+(:\d{1,2}){0,2}$/, 'must be a time as Slurm writes it, such as 30, 4:00:00 or 1-12:00:00')
    .nullable()
    .default(null)
    .describe('limit, such as 4:00:00'),
  cpus: z.int().min(1).nullable().default(null).describe('`--cpus-per-task`'),
  memory: z
    .string()
    .regex(/^\d+[KMGT]?$/, 'must be a size such as 64G')
    .nullable()
    .default(null)
    .describe('`--mem`, such as 64G'),
  gres: valueSchema.nullable().default(null).describe('such as gpu:8'),
  exclusive: z.boolean().default(false).describe('the whole host'),
  sbatch: z
    .array(
      z.string().regex(/^--[a-z][a-z-]*(=[A-Za-z0-9_.,:=+@%/&|()[\]*!~-]+)?$/, 'must be --option or --option=value'),
    )
    .default([])
    .describe('further options of sbatch, such as --licenses=data'),
});
export type SlurmJob = z.infer<typeof slurmJobSchema>;

/** `own` where it says something, else `shared`; further options of both. */
export function mergedJob(shared: SlurmJob, own: SlurmJob): SlurmJob {
  const said = Object.entries(own).filter(([, value]) => value !== null && value !== false);
  return { ...shared, ...Object.fromEntries(said), sbatch: [...shared.sbatch, ...own.sbatch] };
}

/** The `#SBATCH` lines of what was asked for. */
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
