import {
  Bool,
  type DataType,
  Field,
  Float32,
  Float64,
  Int32,
  List,
  Null,
  Schema,
  Struct,
  Uint8,
  Utf8,
} from 'apache-arrow';
import { type ArrowColumn, type BodyBuffer, bits, bytes, encodeStream, NO_NULLS, offsetsOf } from './arrow-stream.ts';
import { Booleans, Json, type RecordValue, type TrainerRecord } from './format.ts';

type TypedColumn = Int32Array | Float32Array | Uint8Array;

/**
 * Encodes records as one record batch in Arrow's IPC stream format. Token columns become lists of int32, float32, uint8 or bool. Objects
 * become structs, and values without token columns become their JSON text. A number is a float64, or an int32 in the fields that `integers`
 * names. All records must have the same fields. Throws `unsupported` for a column that is larger than Arrow's offsets allow.
 */
export function encodeArrow(records: readonly TrainerRecord[], integers: ReadonlySet<string>): Buffer {
  const { type, children } = structColumn(records, integers);
  return encodeStream(new Schema((type as Struct).children), children, records.length);
}

/** Makes a column of values of one kind; some values may be `null`. `name` is the field that holds them. */
function columnOf(values: readonly RecordValue[], name: string, integers: ReadonlySet<string>): ArrowColumn {
  const present = values.find((value) => value !== null);
  const length = values.length;
  if (present === undefined) return { type: new Null(), length, nullCount: length, buffers: [], children: [] };
  switch (typeof present) {
    case 'string':
      return textColumn(values as (string | null)[]);
    case 'boolean':
      return column(new Bool(), values, [bits([Uint8Array.from(values, (value) => (value === true ? 1 : 0))])]);
    case 'number': {
      const numbers = values as (number | null)[];
      return integers.has(name)
        ? column(new Int32(), values, [bytes([Int32Array.from(numbers, (value) => value ?? 0)])])
        : column(new Float64(), values, [bytes([Float64Array.from(numbers, (value) => value ?? 0)])]);
    }
  }
  if (present instanceof Json) {
    return textColumn((values as (Json | null)[]).map((json) => (json === null ? null : JSON.stringify(json.value))));
  }
  if (present instanceof Booleans) {
    const lists = (values as (Booleans | null)[]).map((list) => list?.values ?? null);
    return listColumn(lists, flatColumn(new Bool(), lists, bits));
  }
  if (present instanceof Int32Array) return typedColumn(values as (Int32Array | null)[], new Int32());
  if (present instanceof Float32Array) return typedColumn(values as (Float32Array | null)[], new Float32());
  if (present instanceof Uint8Array) return typedColumn(values as (Uint8Array | null)[], new Uint8());
  if (Array.isArray(present)) {
    const lists = values as (readonly RecordValue[] | null)[];
    const elements = lists.flatMap((list) => list ?? []);
    return listColumn(lists, columnOf(elements, name, integers));
  }
  return structColumn(values as (Readonly<Record<string, RecordValue>> | null)[], integers);
}

function structColumn(
  values: readonly (Readonly<Record<string, RecordValue>> | null)[],
  integers: ReadonlySet<string>,
): ArrowColumn {
  const names = [...new Set(values.flatMap((value) => (value === null ? [] : Object.keys(value))))];
  const children = names.map((name) => {
    const members = values.map((value) => value?.[name] ?? null);
    return columnOf(members, name, integers);
  });
  const fields = names.map((name, index) => new Field(name, children[index]?.type as DataType, true));
  return column(new Struct(fields), values, [], children);
}

function textColumn(values: readonly (string | null)[]): ArrowColumn {
  const texts = values.map((value) => Buffer.from(value ?? '', 'utf8'));
  return column(new Utf8(), values, [offsetsOf(texts), bytes(texts)]);
}

function typedColumn<T extends TypedColumn>(lists: readonly (T | null)[], type: DataType): ArrowColumn {
  return listColumn(lists, flatColumn(type, lists, bytes));
}

/** Makes the column of the elements of all lists. Lists may be `null`, but elements may not. */
function flatColumn<T extends TypedColumn>(
  type: DataType,
  lists: readonly (T | null)[],
  bufferOf: (parts: readonly T[]) => BodyBuffer,
): ArrowColumn {
  const parts = lists.filter((list) => list !== null);
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  return { type, length, nullCount: 0, buffers: [NO_NULLS, bufferOf(parts)], children: [] };
}

function listColumn(lists: readonly (ArrayLike<unknown> | null)[], child: ArrowColumn): ArrowColumn {
  return column(new List(new Field('item', child.type, true)), lists, [offsetsOf(lists)], [child]);
}

/** Makes a column with one element for each of `values`. An element is null when its value is `null`. */
function column(
  type: DataType,
  values: readonly unknown[],
  buffers: readonly BodyBuffer[],
  children: readonly ArrowColumn[] = [],
): ArrowColumn {
  const nullCount = values.reduce((count: number, value) => (value === null ? count + 1 : count), 0);
  const validity = nullCount === 0 ? NO_NULLS : bits([Uint8Array.from(values, (value) => (value === null ? 0 : 1))]);
  return { type, length: values.length, nullCount, buffers: [validity, ...buffers], children };
}
