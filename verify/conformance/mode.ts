// Determines in which mode the suite runs.
import type { SimConfigInput } from '@floe-rl/sim';

/** Environment variable that contains the mode of a run. */
export const MODE_VARIABLE = 'FLOE_CONFORMANCE_MODE';

/** The modes in which floe captures calls: with prompts of token ids, as `auto` chooses if the engine takes them, or with messages. */
export const MODES = ['tokens', 'chat'] as const;
export type Mode = (typeof MODES)[number];

/** The mode of this run. Without the variable, it is `tokens`. */
export const MODE: Mode = process.env[MODE_VARIABLE] === 'chat' ? 'chat' : 'tokens';

/** Settings of the simulated engine that let floe capture calls in the mode of this run. */
export const MODE_SIM: SimConfigInput = { scaleOut: MODE === 'tokens' };

/**
 * Settings of the simulated engine for tests in which the engine breaks off a streamed reply. They require chat mode in every run. In tokens
 * mode, a reply is sampled again if nothing of it was shown before, which depends on the speed of the machine.
 */
export const STREAMING_SIM: SimConfigInput = { scaleOut: false };
