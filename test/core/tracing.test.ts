import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { formatTraceparent, parseTraceparent, passingTracer, traceIdOf } from '../../src/core/tracing.ts';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const SPAN = 'b7ad6b7169203331';

const hex = (length: number) =>
  fc
    .string({ unit: fc.constantFrom(...'0123456789abcdef'), minLength: length, maxLength: length })
    .filter((text) => !/^0*$/.test(text));

describe('a traceparent', () => {
  it('is read as it was written, whatever its ids', () => {
    fc.assert(
      fc.property(hex(32), hex(16), fc.boolean(), (traceId, spanId, sampled) => {
        const context = { traceId, spanId, sampled };
        expect(parseTraceparent(formatTraceparent(context))).toEqual(context);
      }),
    );
  });

  it('may have flags that are not known, and, of a later version, fields that are not', () => {
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
  ])('is nothing when it reads %j', (text) => {
    expect(parseTraceparent(text)).toBeNull();
  });
});

describe('the trace of an id', () => {
  it('is the same everywhere, another for another id, and a trace id', () => {
    expect(traceIdOf('ses_1')).toBe(traceIdOf('ses_1'));
    expect(traceIdOf('ses_1')).not.toBe(traceIdOf('ses_2'));
    expect(parseTraceparent(`00-${traceIdOf('ses_1')}-${SPAN}-01`)).not.toBeNull();
  });
});

describe('a tracer that records nothing', () => {
  it('hands the trace on, however deep', () => {
    const parent = `00-${TRACE}-${SPAN}-01`;
    const span = passingTracer.start('a', { parent, id: 'x' }, {});
    expect(span.child('b').child('c').traceparent).toBe(parent);
    expect(passingTracer.start('a', { parent: null, id: 'x' }, {}).traceparent).toBeNull();
  });
});
