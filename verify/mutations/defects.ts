// Defects that would put wrong tokens into training, or break another promise about model calls, leases or agents, each a small change of one
// file.
import { AGENT_DEFECTS } from './defects/agents.ts';
import { CAPTURE_DEFECTS } from './defects/capture.ts';
import { CONTROL_DEFECTS } from './defects/control.ts';
import { TRACE_DEFECTS } from './defects/traces.ts';
import type { Mutation } from './mutation.ts';

export const MUTATIONS: readonly Mutation[] = [
  ...CAPTURE_DEFECTS,
  ...TRACE_DEFECTS,
  ...CONTROL_DEFECTS,
  ...AGENT_DEFECTS,
];
