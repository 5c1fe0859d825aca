import { faultyCell } from '../faulty-cell.mjs';

export const cell = faultyCell('engine_500', 'http_500', 'the engine answers 500 twice');
