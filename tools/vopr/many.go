package vopr

import (
	"context"
	"sync"
	"sync/atomic"
)

// Many plays n seeds from first on, several at a time; each world runs on one goroutine of its own, and none knows of
// another. each is called for every result, one call at a time, in no particular order. It stops when ctx ends or each
// reports false.
func Many(ctx context.Context, o Options, first uint64, n, workers int, each func(Result) bool) {
	var next atomic.Uint64
	var stop atomic.Bool
	var lock sync.Mutex
	var wg sync.WaitGroup
	for range max(workers, 1) {
		wg.Go(func() {
			for !stop.Load() && ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= uint64(n) {
					return
				}
				r := Run(first+i, o)
				lock.Lock()
				if !stop.Load() && !each(r) {
					stop.Store(true)
				}
				lock.Unlock()
			}
		})
	}
	wg.Wait()
}
