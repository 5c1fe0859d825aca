import { describe, expect, it } from 'vitest';
import { withImages } from '../../../src/rollout/polar/images.ts';

const part = (url: string) => ({ type: 'image_url', image_url: { url } });
const inlined = (traces: unknown, images: Record<string, string>): unknown =>
  JSON.parse(withImages(Buffer.from(JSON.stringify(traces)), Buffer.from(JSON.stringify(images))).toString());

describe('the traces that Polar receives', () => {
  it('contain the images of all messages', () => {
    const traces = (one: string, two: string) => [
      { prompt_messages: [{ role: 'user', content: [part(one), part('https://example.com/a.png'), part(two)] }] },
      { prompt_messages: [{ role: 'user', content: [part(one)] }] },
    ];
    const images = { 'floe-image:1': 'data:image/png;base64,AAAA', 'floe-image:2': 'data:,"quoted" \\' };
    expect(inlined(traces('floe-image:1', 'floe-image:2'), images)).toEqual(
      traces('data:image/png;base64,AAAA', 'data:,"quoted" \\'),
    );
  });

  it('keep texts that look like a reference', () => {
    const text = '{"image_url":{"url":"floe-image:1"}} floe-image:1';
    const traces = [
      {
        prompt_messages: [
          { role: 'user', content: text },
          { role: 'user', content: 'floe-image:1' },
        ],
      },
    ];
    expect(inlined(traces, { 'floe-image:1': 'data:,A' })).toEqual(traces);
  });

  it('are unchanged without images', () => {
    const traces = Buffer.from('[{"prompt_messages":[]}]');
    expect(withImages(traces, Buffer.from('{}'))).toBe(traces);
  });
});
