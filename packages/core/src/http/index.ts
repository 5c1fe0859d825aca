/** Bounded outbound HTTP calls. They have an entry of their own, `@floe-rl/core/http`, because they load undici. */
export {
  callHttp,
  callHttpStatus,
  type HttpLimits,
  type HttpReply,
  type HttpRequest,
  type OpenHttpReply,
  openHttp,
  openHttpPath,
  quotedReply,
} from './call.ts';
export { type HttpAgent, type HttpPool, httpAgent, httpPool } from './connections.ts';
