/** Points in the cells of a grid: finds the nearest of thousands without looking at each. */

export class PointGrid {
  private readonly cells: Int32Array;
  private readonly starts: Int32Array;
  private readonly columns: number;
  private readonly rows: number;

  constructor(
    private readonly x: ArrayLike<number>,
    private readonly y: ArrayLike<number>,
    width: number,
    height: number,
    private readonly size = 24,
  ) {
    this.columns = Math.max(1, Math.ceil(width / size));
    this.rows = Math.max(1, Math.ceil(height / size));
    const count = x.length;
    const cell = new Int32Array(count);
    this.starts = new Int32Array(this.columns * this.rows + 1);
    for (let point = 0; point < count; point++) {
      const place = this.row(y[point] as number) * this.columns + this.column(x[point] as number);
      cell[point] = place;
      this.starts[place + 1] = (this.starts[place + 1] as number) + 1;
    }
    for (let place = 1; place < this.starts.length; place++) {
      this.starts[place] = (this.starts[place] as number) + (this.starts[place - 1] as number);
    }
    this.cells = new Int32Array(count);
    const next = this.starts.slice();
    for (let point = 0; point < count; point++) {
      const place = cell[point] as number;
      const slot = next[place] as number;
      this.cells[slot] = point;
      next[place] = slot + 1;
    }
  }

  /** The nearest point within a distance, or -1; of equally near ones the first. */
  nearest(x: number, y: number, within: number): number {
    let best = -1;
    let least = within * within;
    for (let row = this.row(y - within); row <= this.row(y + within); row++) {
      for (let column = this.column(x - within); column <= this.column(x + within); column++) {
        const place = row * this.columns + column;
        const end = this.starts[place + 1] as number;
        for (let slot = this.starts[place] as number; slot < end; slot++) {
          const point = this.cells[slot] as number;
          const dx = (this.x[point] as number) - x;
          const dy = (this.y[point] as number) - y;
          const distance = dx * dx + dy * dy;
          if (distance < least || (distance === least && (best < 0 || point < best))) {
            least = distance;
            best = point;
          }
        }
      }
    }
    return best;
  }

  private column(x: number): number {
    return Math.min(this.columns - 1, Math.max(0, Math.floor(x / this.size)));
  }

  private row(y: number): number {
    return Math.min(this.rows - 1, Math.max(0, Math.floor(y / this.size)));
  }
}
