/** The exports of `@floe-rl/capture` for other packages. */
export { callRulesOf } from './dialects/call-kinds/label.ts';
export { MAIN_THREAD } from './dialects/call-kinds/prompt-view.ts';
export {
  defineEngine,
  type EngineConnection,
  type EngineDefinition,
  type EngineKit,
  engineModule,
  type SampledIds,
  type SampleRequest,
} from './engines/custom/definition.ts';
export type { EngineNotice } from './engines/engine.ts';
export type { EngineKinds } from './engines/engine-kinds.ts';
export type { EnginePools } from './engines/pool/engine-pools.ts';
export { createEnginePools } from './engines/pool/managed-engine-pools.ts';
export { TextTokenizer, tokenizerJsonSchema } from './engines/tokenizer/text-tokenizer.ts';
export {
  type Capture,
  type CaptureOptions,
  type CaptureSession,
  type CaptureSessionOptions,
  startCapture,
} from './proxy/capture.ts';
export { createProxy, type ModelProxy, type ProxyDeps } from './proxy/http/proxy.ts';
export { encodeFrame, type OpenAppendFile, openAppendFile, readFrames } from './proxy/journal/append-file.ts';
export { CaptureJournal, type CompletionJournal, journalModeSchema } from './proxy/journal/journal.ts';
export {
  attemptKey,
  indexSegment,
  type RecordLocation,
  type RecordReading,
  readRecords,
} from './proxy/journal/journal-index.ts';
export { callDirectly } from './proxy/session/direct-call.ts';
export { callFromMailbox, mailboxError } from './proxy/session/mailbox-call.ts';
export { ProxySession } from './proxy/session/session.ts';
export type { ProxySessionSpec } from './proxy/session/session-spec.ts';
export type { AuditTally } from './tokens/audit.ts';
export type {
  Builder,
  BuildResult,
  BuiltTrace,
  Credit,
  ExplicitRewards,
  StepPosition,
  TrainedSpan,
} from './tokens/builders/builder.ts';
export { type BuilderKit, type BuilderModule, customBuilder } from './tokens/builders/custom.ts';
export { type BuilderRegistry, builderRegistry } from './tokens/builders/registry.ts';
export { callSumsOf } from './tokens/call-sums.ts';
export type { Completion } from './tokens/completion.ts';
export { conversationOf, responseMessages } from './tokens/conversation.ts';
export type { SameText } from './tokens/drift.ts';
export { proveSameText } from './tokens/drift-proof.ts';
export type { GraphNode, GraphOptions, TokenGraph } from './tokens/graph.ts';
export { encodeRecords } from './tokens/records.ts';
export {
  type BuiltTraces,
  buildTraces,
  buildTrajectory,
  encodeTrajectory,
  type TrajectoryEnding,
  traceIdOf,
} from './tokens/trajectory.ts';
