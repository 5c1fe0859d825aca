import type { EnvironmentDefinition } from '../environment.ts';
import { nemoGym } from './nemo-gym.ts';
import { openEnv } from './openenv.ts';
import { openReward } from './ors.ts';

/** Environments whose worlds are at servers of other systems, which the operator of a node names. */
export const REMOTE_ENVIRONMENTS: readonly EnvironmentDefinition[] = [openEnv, nemoGym, openReward];
