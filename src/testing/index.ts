/**
 * `floe/testing`: the simulated engine with its ledger, a whole floe in one process, and a clock that a test moves. With them a trainer or
 * a plug-in is tested without a GPU, token by token.
 */
export { VirtualClock } from '../core/virtual-clock.ts';
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
} from '../sim/index.ts';
export { startTestService, type TestService, type TestServiceOptions } from './service.ts';
