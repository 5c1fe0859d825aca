/** The exports of `@floe-rl/core` for other packages. */
export { abortAfter, abortLate, type LinkedAbort, linkAbort, onAbort, raceAbort } from './abort.ts';
export { type Backoff, backoffMs, jitteredBackoffMs } from './backoff.ts';
export { lastBoxed } from './boxed-text.ts';
export { GIB, KIB, MIB } from './bytes.ts';
export { canonicalJson } from './canonical-json.ts';
export {
  type CallOptions,
  Channel,
  type ChannelOptions,
  Moved,
  movedBytes,
  type Operations,
} from './channel/channel.ts';
export { type ErrorCodec, type ErrorMessage, floeErrors } from './channel/error-codec.ts';
export { LineReader } from './channel/line-reader.ts';
export { PendingRequests } from './channel/pending-requests.ts';
export { type ConnectedProcess, type Port, processPort, threadPort } from './channel/ports.ts';
export { serveThread, Thread } from './channel/thread.ts';
export { type Clock, isoNow, scheduleAfterInput, sleep, systemClock } from './clock.ts';
export { asFloeError, ERROR_TABLE, type ErrorCode, FloeError } from './errors.ts';
export { nextEventLoopTurn } from './event-loop.ts';
export { fieldError, fieldErrors } from './fields.ts';
export { GatheredBytes } from './gathered-bytes.ts';
export {
  checkedLookup,
  type EgressRules,
  type EgressTarget,
  type HostPatterns,
  parseTarget,
  RefusedAddress,
  refusalOf,
} from './host-rules.ts';
export { engineIdOf, newId, newSessionKey } from './ids.ts';
export { JsonWriter } from './json/json-writer.ts';
export { jsonSize, MAX_TASK_BYTES, MAX_TASK_VALUES, requireTaskSize } from './json-size.ts';
export { lastOutput } from './last-output.ts';
export { LightAbort } from './light-abort.ts';
export { type ListenOptions, listenError } from './listen-error.ts';
export { addressKind, isLoopbackHost } from './network-address.ts';
export { optionalPackages } from './optional-package.ts';
export { assetPath, entryPath } from './package-root.ts';
export { parseAs, parseJson } from './parse.ts';
export { createPrivateFile, PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, restrictToOwner } from './private-file.ts';
export { acquireLock } from './process-lock.ts';
export { settleAll, sharedTurns, undoAll } from './promises.ts';
export { pickOne, type RandomSource, randomBelow, seededRandom, shuffled, systemRandom } from './random.ts';
export { isRecord } from './record.ts';
export { removeTree } from './remove-tree.ts';
export { INSTALLATION_MARK, runTool, type ToolFailure } from './run-tool.ts';
export { Semaphore } from './semaphore.ts';
export { shellWord } from './shell-word.ts';
export { ensureWritableDir, freeBytes, makeTempDir, systemError, withContext } from './system-errors.ts';
export { fillTemplate, valueAt } from './template.ts';
export { messageOf } from './thrown.ts';
export { readPem, readTls, type TlsFiles, type TlsMaterial, watchTls } from './tls-files.ts';
export {
  endSpanWith,
  formatTraceparent,
  NO_SPAN,
  parseTraceparent,
  passThroughSpan,
  passThroughTracer,
  type Span,
  type SpanAttributes,
  type SpanKind,
  type SpanOrigin,
  type TraceContext,
  type Tracer,
  traceIdOf,
} from './tracing.ts';
export { VirtualClock } from './virtual-clock.ts';
export { mayEscapeSurrogates, WellFormedPieces, wellFormed, wellFormedCalls, wellFormedJson } from './well-formed.ts';
export { lowerCaseWords } from './words.ts';
