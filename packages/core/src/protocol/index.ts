/** The parts of the protocol between server, nodes and clients that are not schemas. */
export { lowerCaseWords } from '../words.ts';
export type { BatchFilter, FilteredGroup } from './batch-filter.ts';
export type { DirectCall } from './direct-call.ts';
export {
  decodeEnvelope,
  ENVELOPE_TYPE,
  type Envelope,
  encodeEnvelope,
  envelopeLength,
  RESULT_LIMIT_BYTES,
} from './envelope.ts';
export { evalRuntimeSpec } from './eval-runtime.ts';
export { DROPPED_POLICY, OUTCOMES, policyOf, retriesAfter, unusableReason } from './outcomes.ts';
export { policyStep } from './policy-step.ts';
export { joinedWithin, MAX_SEARCH_CHARS, phrasesOf, searchedText, wordsOf } from './search-text.ts';
export { sessionMemoryMb } from './session-memory.ts';
export { canTransition, isTerminal, transition } from './session-state.ts';
export { NO_TIMING, type SummaryFields, sessionSummary } from './session-summary.ts';
