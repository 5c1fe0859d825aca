/** What the server says that it serves. */
export class Identity {
  private readonly first: string;
  private named: string;
  private changes = 0;

  constructor(model: string) {
    this.first = model;
    this.named = model;
  }

  /** The model's name in replies and lists. */
  get model(): string {
    return this.named;
  }

  /** Whether requests may name `model`: the one that is told, and the one that clients knew first. */
  answersTo(model: string): boolean {
    return model === this.named || model === this.first;
  }

  /** From now on another model is told; requests for the first one are answered all the same. */
  changeModel(): void {
    this.named = `${this.first}-changed-${++this.changes}`;
  }
}
