import type { Dialect, Route } from '../dialect.ts';
import {
  encodeGenerateError,
  encodeGenerateReply,
  encodeGenerateStreamError,
  generateFraming,
  openGenerateStream,
} from './reply.ts';
import { parseCountRequest, parseGenerateRequest } from './request.ts';

/** Google's Generative Language API, as of Gemini CLI and the `@google/genai` clients. */
export const gemini: Dialect = {
  name: 'gemini',
  routes: ['/v1beta', '/v1'].flatMap((version): Route[] => [
    { method: 'POST', path: `${version}/models/{model}:generateContent`, kind: 'generate', stream: false },
    { method: 'POST', path: `${version}/models/{model}:streamGenerateContent`, kind: 'generate', stream: true },
    { method: 'POST', path: `${version}/models/{model}:countTokens`, kind: 'count_tokens' },
    { method: 'GET', path: `${version}/models`, kind: 'models' },
    { method: 'GET', path: `${version}/models/{model}`, kind: 'model' },
  ]),
  parseRequest: parseGenerateRequest,
  parseCount: parseCountRequest,
  encodeReply: encodeGenerateReply,
  openStream: openGenerateStream,
  framing: generateFraming,
  encodeModels: (model, maxModelLen) => JSON.stringify({ models: [modelObject(model, maxModelLen)] }),
  encodeModel: (model, maxModelLen) => JSON.stringify(modelObject(model, maxModelLen)),
  encodeCount: (tokens) => JSON.stringify({ totalTokens: tokens }),
  encodeError: encodeGenerateError,
  encodeStreamError: encodeGenerateStreamError,
};

function modelObject(model: string, maxModelLen: number | null): object {
  // Prompt and reply share one window, so that either may be as long as all of it.
  const limits = maxModelLen === null ? {} : { inputTokenLimit: maxModelLen, outputTokenLimit: maxModelLen };
  return {
    name: `models/${model}`,
    displayName: model,
    version: '1',
    ...limits,
    supportedGenerationMethods: ['generateContent', 'streamGenerateContent', 'countTokens'],
  };
}
