import { JsonWriter } from '@floe-rl/core';
import { Booleans, Json, type RecordValue, type TrainerRecord } from './format.ts';

/** Estimated number of bytes of one record, apart from its token columns. */
const RECORD_BYTES = 1024;

/**
 * Encodes records as JSON lines in UTF-8: one object per line. A float32 is written as the shortest decimal that restores it when the decimal
 * is read as a double and rounded to a float32.
 */
export function encodeJsonLines(records: readonly TrainerRecord[]): Buffer {
  const out = new JsonWriter(records.length * RECORD_BYTES);
  for (const record of records) {
    writeValue(out, record);
    out.raw('\n');
  }
  return out.finish();
}

function writeValue(out: JsonWriter, value: RecordValue): void {
  if (value === null || typeof value !== 'object') out.value(value);
  else if (value instanceof Int32Array) out.ints(value);
  else if (value instanceof Float32Array) out.floats(value);
  else if (value instanceof Uint8Array) out.digits(value);
  else if (value instanceof Booleans) out.booleans(value.values);
  else if (value instanceof Json) out.value(value.value);
  else if (isList(value)) {
    out.raw('[');
    value.forEach((element, index) => {
      if (index > 0) out.raw(',');
      writeValue(out, element);
    });
    out.raw(']');
  } else {
    out.raw('{');
    Object.entries(value).forEach(([name, member], index) => {
      out.raw(`${index > 0 ? ',' : ''}${JSON.stringify(name)}:`);
      writeValue(out, member);
    });
    out.raw('}');
  }
}

function isList(value: object): value is readonly RecordValue[] {
  return Array.isArray(value);
}
