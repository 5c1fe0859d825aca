import { faultyCell } from '../faulty-cell.mjs';

export const cell = faultyCell('engine_429', 'http_429', 'the engine answers 429 with Retry-After twice');
