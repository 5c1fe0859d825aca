import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { formatTraceparent, parseTraceparent, passThroughTracer, traceIdOf } from '../src/tracing.ts';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const SPAN = 'b7ad6b7169203331';

const hex = (length: number) =>
  fc
    .string({ unit: fc.constantFrom(...'0123456789abcdef'), minLength: length, maxLength: length })
    .filter((text) => !/^0*$/.test(text));

describe('parseTraceparent', () => {
  it('reads every traceparent that formatTraceparent writes', () => {
    fc.assert(
      fc.property(hex(32), hex(16), fc.boolean(), (traceId, spanId, sampled) => {
        const context = { traceId, spanId, sampled };
        expect(parseTraceparent(formatTraceparent(context))).toEqual(context);
      }),
    );
  });

  it('accepts unknown flags, and unknown fields of a later version', () => {
    expect(parseTraceparent(`00-${TRACE}-${SPAN}-03`)?.sampled).toBe(true);
    expect(parseTraceparent(`00-${TRACE}-${SPAN}-02`)?.sampled).toBe(false);
    expect(parseTraceparent(`cc-${TRACE}-${SPAN}-01-what`)?.traceId).toBe(TRACE);
  });

  it.each([
    '',
    'x',
    `ff-${TRACE}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-01-what`,
    `00-${TRACE}-${SPAN}`,
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
    `00-${'0'.repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${'0'.repeat(16)}-01`,
    `00-${TRACE}-${SPAN}-01\r\nx: y`,
  ])('returns null for %j', (text) => {
    expect(parseTraceparent(text)).toBeNull();
  });
});

describe('traceIdOf', () => {
  it('derives one valid trace id from each id', () => {
    expect(traceIdOf('ses_1')).toBe(traceIdOf('ses_1'));
    expect(traceIdOf('ses_1')).not.toBe(traceIdOf('ses_2'));
    expect(parseTraceparent(`00-${traceIdOf('ses_1')}-${SPAN}-01`)).not.toBeNull();
  });
});

describe('passThroughTracer', () => {
  it('passes the traceparent on to spans of any depth', () => {
    const parent = `00-${TRACE}-${SPAN}-01`;
    const span = passThroughTracer.start('a', { parent, id: 'x' }, {});
    expect(span.child('b').child('c').traceparent).toBe(parent);
    expect(passThroughTracer.start('a', { parent: null, id: 'x' }, {}).traceparent).toBeNull();
  });
});
