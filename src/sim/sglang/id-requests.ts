import { FloeError } from '../../core/errors.ts';
import type { Exchange } from '../http.ts';
import { type ChatRequest, isOfAge } from './request.ts';
import type { SglangState } from './state.ts';

/** Where a chat reply is to tell ids. */
export type IdRequests = {
  readonly metaInfo: boolean;
  /** Of the prompt and of the reply, in the choice. */
  readonly choicePrompt: boolean;
  readonly choiceOutput: boolean;
  /** In the reply's `sglext`, in a stream in its last chunk but one. */
  readonly extensionInput: boolean;
  readonly extensionOutput: boolean;
  /** In the chunks of a stream. */
  readonly chunkPrompt: boolean;
  readonly chunkOutput: boolean;
};

/**
 * What of the request's wishes a server of this age knows; a wish that it does not know is ignored. Throws `engine_rejected` for those
 * that it knows but cannot grant in a stream.
 */
export function idRequests(exchange: Exchange, state: SglangState, request: ChatRequest): IdRequests {
  const stream = request.stream ?? false;
  const streamsIds = isOfAge(state, 'stream_ids');
  const metaInfo = request.return_meta_info === true;
  const prompt = request.return_prompt_token_ids === true;
  const output = request.return_token_ids === true && isOfAge(state, 'token_ids');
  if (stream) {
    if (metaInfo) throw notInStreams('return_meta_info');
    if (prompt && !streamsIds) throw notInStreams('return_prompt_token_ids');
    if (output && !streamsIds) throw notInStreams('return_token_ids');
  }
  const extension = isOfAge(state, 'sglext');
  const asks = (field: 'input' | 'output'): boolean =>
    extension &&
    (request[`return_${field}_ids_in_sglext`] === true || exchange.header(`x-sglext-return-${field}-ids`) === '1');
  return {
    metaInfo,
    choicePrompt: prompt || output,
    choiceOutput: output,
    extensionInput: asks('input'),
    extensionOutput: asks('output'),
    chunkPrompt: stream && (prompt || output),
    chunkOutput: stream && output,
  };
}

function notInStreams(field: string): FloeError {
  return new FloeError(
    'engine_rejected',
    `${field} is not supported with streaming. Please set stream=false when using ${field}=true.`,
  );
}
