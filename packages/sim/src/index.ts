/** The simulated inference engine: exports the parts that commands, verification programs and tests use. */
export { SIM_FACES, SIM_MODEL, type SimConfigInput, type SimFace } from './config.ts';
export { FAULT_KINDS, type FaultInput, type FaultKind } from './faults.ts';
export type { Ledger, LedgerEntry } from './ledger.ts';
export { checkAgainstLedger, type LedgerCheckOptions, type LedgerMismatch, type LedgerReport } from './ledger-check.ts';
export { type ChatMessage, templateMessages } from './messages.ts';
export { parseConversation } from './policy/conversation.ts';
export { Policy } from './policy/policy.ts';
export {
  loadScenarios,
  parseScenarios,
  type Scenario,
  type ScenarioInput,
  scenarioSchema,
} from './policy/scenario.ts';
export { type SimOptions, type SimServer, startSim } from './server.ts';
export {
  generationPrompt,
  renderChat,
  TEMPLATE_MODES,
  type TemplateMessage,
  type TemplateMode,
  thinkBlock,
  toolCallText,
} from './template.ts';
export { bundledTokenizerPath, bundledVocabulary } from './vocabulary.ts';
