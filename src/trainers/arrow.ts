import {
  Bool,
  type Data,
  type DataType,
  Field,
  Float32,
  Float64,
  Int32,
  List,
  makeData,
  Null,
  RecordBatch,
  Schema,
  Struct,
  Table,
  tableToIPC,
  Uint8,
  Utf8,
} from 'apache-arrow';
import { Booleans, Json, type RecordValue, type TrainerRecord } from './format.ts';

type TypedColumn = Int32Array | Float32Array | Uint8Array;

/**
 * Encodes records as one record batch in Arrow's IPC stream format. Token columns become lists of int32, float32, uint8 or bool, objects
 * become structs, and values without token columns their JSON text. A number is a float64, and an int32 in the fields that `integers` names.
 * All records must have the same fields.
 */
export function encodeArrow(records: readonly TrainerRecord[], integers: ReadonlySet<string>): Buffer {
  const rows = structColumn(records, { nullCount: 0, nullBitmap: new Uint8Array(0) }, integers);
  const table = new Table(new RecordBatch(new Schema(rows.type.children), rows));
  const bytes = tableToIPC(table, 'stream');
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Makes a column of values of one kind, some of which may be `null`. `name` is the field that holds them. */
function columnOf(values: readonly RecordValue[], name: string, integers: ReadonlySet<string>): Data {
  const present = values.find((value) => value !== null);
  const length = values.length;
  if (present === undefined) return makeData({ type: new Null(), length });
  const nulls = nullsOf(values);
  switch (typeof present) {
    case 'string':
      return textColumn(values as (string | null)[], nulls);
    case 'boolean':
      return makeData({
        type: new Bool(),
        length,
        ...nulls,
        data: bits(Uint8Array.from(values, (value) => (value === true ? 1 : 0))),
      });
    case 'number': {
      const numbers = values as (number | null)[];
      return integers.has(name)
        ? makeData({ type: new Int32(), length, ...nulls, data: Int32Array.from(numbers, (value) => value ?? 0) })
        : makeData({ type: new Float64(), length, ...nulls, data: Float64Array.from(numbers, (value) => value ?? 0) });
    }
  }
  if (present instanceof Json) {
    return textColumn(
      (values as (Json | null)[]).map((json) => (json === null ? null : JSON.stringify(json.value))),
      nulls,
    );
  }
  if (present instanceof Booleans) {
    const lists = (values as (Booleans | null)[]).map((list) => list?.values ?? null);
    const joined = joinTyped(lists, Uint8Array);
    return listColumn(lists, nulls, makeData({ type: new Bool(), length: joined.length, data: bits(joined) }));
  }
  if (present instanceof Int32Array)
    return typedColumn(values as (Int32Array | null)[], nulls, new Int32(), Int32Array);
  if (present instanceof Float32Array) {
    return typedColumn(values as (Float32Array | null)[], nulls, new Float32(), Float32Array);
  }
  if (present instanceof Uint8Array)
    return typedColumn(values as (Uint8Array | null)[], nulls, new Uint8(), Uint8Array);
  if (Array.isArray(present)) {
    const lists = values as (readonly RecordValue[] | null)[];
    return listColumn(
      lists,
      nulls,
      columnOf(
        lists.flatMap((list) => list ?? []),
        name,
        integers,
      ),
    );
  }
  return structColumn(values as (Readonly<Record<string, RecordValue>> | null)[], nulls, integers);
}

function structColumn(
  values: readonly (Readonly<Record<string, RecordValue>> | null)[],
  nulls: Nulls,
  integers: ReadonlySet<string>,
): Data<Struct> {
  const names = new Set(values.flatMap((value) => (value === null ? [] : Object.keys(value))));
  const children = [...names].map((name) => {
    return {
      name,
      column: columnOf(
        values.map((value) => value?.[name] ?? null),
        name,
        integers,
      ),
    };
  });
  const fields = children.map(({ name, column }) => new Field(name, column.type as DataType, true));
  return makeData({
    type: new Struct(fields),
    length: values.length,
    ...nulls,
    children: children.map(({ column }) => column),
  });
}

function textColumn(values: readonly (string | null)[], nulls: Nulls): Data {
  const texts = values.map((value) => Buffer.from(value ?? '', 'utf8'));
  return makeData({
    type: new Utf8(),
    length: values.length,
    ...nulls,
    valueOffsets: offsetsOf(texts),
    data: Buffer.concat(texts),
  });
}

function typedColumn<T extends TypedColumn>(
  lists: readonly (T | null)[],
  nulls: Nulls,
  type: Int32 | Float32 | Uint8,
  make: new (length: number) => T,
): Data {
  const data = joinTyped(lists, make);
  return listColumn(lists, nulls, makeData({ type, length: data.length, data } as never));
}

function listColumn(lists: readonly (ArrayLike<unknown> | null)[], nulls: Nulls, child: Data): Data {
  return makeData({
    type: new List(new Field('item', child.type as DataType, true)),
    length: lists.length,
    ...nulls,
    valueOffsets: offsetsOf(lists),
    child,
  });
}

function joinTyped<T extends TypedColumn>(lists: readonly (T | null)[], make: new (length: number) => T): T {
  const joined = new make(lists.reduce((sum, list) => sum + (list?.length ?? 0), 0));
  let at = 0;
  for (const list of lists) {
    if (list === null) continue;
    joined.set(list, at);
    at += list.length;
  }
  return joined;
}

/** Returns the position at which each list begins in the joined values, and the total length. */
function offsetsOf(lists: readonly ({ readonly length: number } | null)[]): Int32Array {
  const offsets = new Int32Array(lists.length + 1);
  lists.forEach((list, index) => {
    offsets[index + 1] = (offsets[index] as number) + (list?.length ?? 0);
  });
  return offsets;
}

type Nulls = { readonly nullCount: number; readonly nullBitmap: Uint8Array };

function nullsOf(values: readonly unknown[]): Nulls {
  const present = Uint8Array.from(values, (value) => (value === null ? 0 : 1));
  const nullCount = present.reduce((count, flag) => count - flag, values.length);
  return { nullCount, nullBitmap: nullCount === 0 ? new Uint8Array(0) : bits(present) };
}

/** Packs flags, which are 0 or 1, into bits: the first flag in the least significant bit of the first byte, padded to eight bytes. */
function bits(flags: Uint8Array): Uint8Array {
  const packed = new Uint8Array(Math.ceil(flags.length / 64) * 8);
  for (let i = 0; i < flags.length; i += 8) {
    let byte = 0;
    const end = Math.min(8, flags.length - i);
    for (let bit = 0; bit < end; bit++) byte |= (flags[i + bit] as number) << bit;
    packed[i >> 3] = byte;
  }
  return packed;
}
