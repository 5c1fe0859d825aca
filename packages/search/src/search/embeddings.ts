import { asFloeError, parseAs } from '@floe-rl/core';
import { z } from 'zod';
import { type JsonService, postJson, unreadable } from './post-json.ts';

const answerSchema = z.object({
  data: z.array(z.object({ index: z.int().min(0), embedding: z.array(z.number()).min(1) })),
});

/** A service that makes vectors of texts through OpenAI's route `/v1/embeddings`. */
export class Embeddings {
  readonly model: string;
  private readonly service: JsonService;

  /** `url` is the base URL, such as `http://host:8000/v1`, or the URL of the route itself. */
  constructor(url: string, model: string, key: string | null) {
    const base = url.replace(/\/+$/, '');
    this.service = {
      url: base.endsWith('/embeddings') ? base : `${base}/embeddings`,
      key,
      name: 'the embeddings service',
    };
    this.model = model;
  }

  /** Returns a vector of length 1 for each text, in the order of the texts. Rejects as {@link postJson} does. */
  async vectorsOf(texts: readonly string[], signal: AbortSignal): Promise<readonly Float32Array[]> {
    const answer = await postJson(this.service, { model: this.model, input: texts }, signal);
    const vectors: (Float32Array | undefined)[] = [];
    for (const { index, embedding } of this.parsed(answer).data) vectors[index] = unitVector(embedding);
    const [first] = vectors;
    return texts.map((_, index) => {
      const vector = vectors[index];
      if (vector === undefined) throw unreadable(this.service, `it has no vector for input ${index}`);
      if (vector.length !== first?.length) throw unreadable(this.service, 'its vectors have different lengths');
      return vector;
    });
  }

  private parsed(answer: unknown): z.output<typeof answerSchema> {
    try {
      return parseAs(answerSchema, answer, 'the answer');
    } catch (error) {
      throw unreadable(this.service, asFloeError(error).message);
    }
  }
}

/** Returns the vector divided by its length. A vector of zeros is returned unchanged; its similarity to any vector is 0. */
function unitVector(values: readonly number[]): Float32Array {
  const norm = Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
  return Float32Array.from(values, (value) => (norm > 0 ? value / norm : 0));
}
