import { z } from 'zod';

/** A Python class of the operator, which runs in Python processes of the node. */
export const pythonPluginSchema = z.strictObject({
  kind: z
    .enum(['environment', 'runner', 'handler'])
    .describe('an environment or an agent that tasks name, or a handler for data sources'),
  target: z
    .string()
    .regex(/^[A-Za-z_][\w.]*(:\S+|\.\w+)$/, 'must be module:Class, gem:ID or verifiers:ID')
    .describe('`module:Class`; of an environment also `gem:ID` and `verifiers:ID`'),
  python: z.string().min(1).default('python3').describe('the interpreter, or the folder of its virtual environment'),
  path: z
    .string()
    .min(1)
    .nullable()
    .default(null)
    .describe('folder in which the process works and that has its modules; null: the working directory of the node'),
  options: z
    .record(z.string(), z.unknown())
    .default({})
    .describe(
      'keyword arguments of every environment or handler, or fields of the configuration of every runner; tasks cannot change them',
    ),
  call_seconds: z
    .number()
    .gt(0)
    .max(3600)
    .default(60)
    .describe('time limit of a reset or step of an environment; a process in which one takes longer is ended'),
  threads: z
    .int()
    .min(1)
    .max(256)
    .default(1)
    .describe(
      'number of episodes of an environment whose code may run at the same time in one process; with 1, each episode has its own state of the global random generators',
    ),
});
export type PythonPlugin = z.infer<typeof pythonPluginSchema>;
