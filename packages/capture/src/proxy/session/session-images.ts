import { FloeError } from '@floe-rl/core';
import type { ChatMessage } from '@floe-rl/core/schema';
import { type ImageUrls, imageReference, NO_IMAGES, referencesIn, withImageUrls } from '../../tokens/images.ts';

/** The messages of a request, with references that replace its images. `references` lists these references. */
export type HeldImages = { readonly messages: readonly ChatMessage[]; readonly references: ReadonlySet<string> };

/**
 * An image. `holders` is the number of running calls whose request contains it. `isRecorded` is whether a recorded completion contains it,
 * which keeps it until the session ends.
 */
type StoredImage = { readonly url: string; holders: number; isRecorded: boolean };

/**
 * Stores each image of a session once, however many requests and messages contain it. A harness sends its whole history with every call, and
 * may move an image to another message. An image is stored while a running call uses it. When a completion that contains the image is
 * recorded, it is kept until the session ends.
 */
export class SessionImages {
  private readonly stored = new Map<string, StoredImage>();
  /** Messages that already have references. They come from recorded requests that a new request continues. */
  private readonly converted = new WeakSet<ChatMessage>();

  /** The number of stored images. */
  get storedCount(): number {
    return this.stored.size;
  }

  /** Replaces the images of a request by references and stores them. The caller must call {@link release} when its call has ended. */
  hold(messages: readonly ChatMessage[]): HeldImages {
    const converted = messages.map((message) => this.withReferences(message));
    const references = referencesIn(converted);
    for (const reference of references) this.imageOf(reference).holders++;
    return { messages: converted, references };
  }

  /** Returns the URL for which a reference stands. A URL that is not a stored reference is returned unchanged. */
  urlOf(reference: string): string {
    return this.stored.get(reference)?.url ?? reference;
  }

  /** Returns the images of a request that no recorded completion contains. */
  unrecorded({ references }: HeldImages): ImageUrls {
    if (references.size === 0) return NO_IMAGES;
    const images = [...references].map((reference) => [reference, this.imageOf(reference)] as const);
    return new Map(images.filter(([, image]) => !image.isRecorded).map(([reference, { url }]) => [reference, url]));
  }

  /** Keeps images of a recorded completion until the session ends. */
  markRecorded(images: ImageUrls): void {
    for (const reference of images.keys()) this.imageOf(reference).isRecorded = true;
  }

  /** Removes the images of an ended call, except images that a recorded completion or another running call contains. */
  release({ references }: HeldImages): void {
    for (const reference of references) {
      const image = this.imageOf(reference);
      image.holders--;
      if (image.holders === 0 && !image.isRecorded) this.stored.delete(reference);
    }
  }

  private withReferences(message: ChatMessage): ChatMessage {
    if (typeof message.content !== 'object' || this.converted.has(message)) return message;
    const converted = withImageUrls(message, (url) => {
      const reference = imageReference(url);
      if (reference === null) return url;
      if (!this.stored.has(reference)) this.stored.set(reference, { url, holders: 0, isRecorded: false });
      return reference;
    });
    if (converted !== message) this.converted.add(converted);
    return converted;
  }

  private imageOf(reference: string): StoredImage {
    const image = this.stored.get(reference);
    if (image === undefined) throw new FloeError('internal', `the session does not store the image ${reference}`);
    return image;
  }
}
