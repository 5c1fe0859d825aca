/**
 * `floe/testing`: the simulated engine with its ledger of sampled tokens, a complete floe in one process, and a clock that a test
 * controls. With these, a trainer or plug-in can be tested without a GPU, token by token.
 */

export { type CheckOptions, checkEnvironment, type EnvironmentCheck } from '@floe-rl/agents';
export { VirtualClock } from '@floe-rl/core';
export {
  checkAgainstLedger,
  FAULT_KINDS,
  type FaultInput,
  type FaultKind,
  type LedgerCheckOptions,
  type LedgerEntry,
  type LedgerReport,
  loadScenarios,
  parseScenarios,
  type Scenario,
  type ScenarioInput,
  type SimConfigInput,
  type SimOptions,
  type SimServer,
  startSim,
  TEMPLATE_MODES,
  type TemplateMode,
} from '@floe-rl/sim';
export { type PlayedEpisode, playedScenarios } from './played-scenarios.ts';
export { startTestService, type TestService, type TestServiceOptions } from './service.ts';
