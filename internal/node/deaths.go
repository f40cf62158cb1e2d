package node

import (
	"sync"

	"github.com/cay-run/cay"
)

// deaths is a queue without an end: an instance's goroutine must never wait
// for whoever reads.
type deaths struct {
	out  chan cay.Death
	done chan struct{}
	wake chan struct{}
	idle sync.WaitGroup

	mu    sync.Mutex
	queue []cay.Death
}

func newDeaths() *deaths {
	d := &deaths{out: make(chan cay.Death), done: make(chan struct{}), wake: make(chan struct{}, 1)}
	d.idle.Go(d.pump)
	return d
}

func (d *deaths) tell(death cay.Death) {
	d.mu.Lock()
	d.queue = append(d.queue, death)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *deaths) pump() {
	defer close(d.out)
	for {
		d.mu.Lock()
		queue := d.queue
		d.queue = nil
		d.mu.Unlock()
		for _, death := range queue {
			select {
			case d.out <- death:
			case <-d.done:
				return
			}
		}
		select {
		case <-d.wake:
		case <-d.done:
			return
		}
	}
}

// close ends the queue; what nobody read is dropped.
func (d *deaths) close() {
	close(d.done)
	d.idle.Wait()
}
