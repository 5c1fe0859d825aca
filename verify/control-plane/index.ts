export { type SimulationResult, simulate } from './simulation.ts';
export type { Violation } from './timeline.ts';
