package vnet

import (
	"context"
	"errors"
	"slices"

	"github.com/cay-run/cay"
)

// Acquire takes a free slot, or makes one. It reaches nothing until Apply.
func (m *Manager) Acquire(ctx context.Context) (Slot, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Slot{}, err
		}
		index, fresh, err := m.take()
		if err != nil {
			return Slot{}, err
		}
		m.want()
		if !fresh {
			if err := m.arm(index); err == nil {
				return m.slot(index), nil
			}
			// It was damaged from outside. Drop it and look further.
			_ = m.drop(index)
			continue
		}
		if err := m.build(index); err != nil {
			m.forget(index)
			return Slot{}, err
		}
		m.set(index, held)
		return m.slot(index), nil
	}
}

// take reserves a free slot, or the index of one to make.
func (m *Manager) take() (index int, fresh bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, false, cay.Errorf(cay.Unavailable, "the network is closed")
	}
	if len(m.free) > 0 {
		index = m.free[0]
		m.free = m.free[1:]
		m.slots[index] = held
		return index, false, nil
	}
	index, err = m.reserve()
	return index, true, err
}

// reserve takes the lowest index that nothing has. The caller holds m.mu.
func (m *Manager) reserve() (int, error) {
	for index := 1; index <= m.capacity(); index++ {
		if _, ok := m.slots[index]; !ok {
			m.slots[index] = making
			return index, nil
		}
	}
	return 0, cay.Errorf(cay.Unavailable, "all %d addresses of %s are in use", m.capacity(), m.network).
		WithCode(cay.CodeCapacity).WithHint("kill sandboxes, or set CAY_NETWORK to a larger range")
}

// Release gives a slot back. The instance must be gone and nothing may route
// to its address any more. Its elements of the packet filter are removed, and the
// slot is put at the end of the queue.
func (m *Manager) Release(_ context.Context, s Slot) error {
	m.mu.Lock()
	ok := m.slots[s.Index] == held
	m.mu.Unlock()
	if !ok {
		return cay.Errorf(cay.Conflict, "network slot %d is not in use", s.Index)
	}
	return m.recycle(s.Index)
}

// recycle makes a slot fit for the next instance and queues it.
func (m *Manager) recycle(index int) error {
	err := m.changePolicy(index, func(policy) policy { return policy{} })
	if err == nil {
		err = m.shape(index, cay.Bandwidth{})
	}
	if err == nil {
		forgetFlows(m.addr(index))
		err = m.arm(index)
	}
	if err != nil {
		// Never hand out what could not be cleaned.
		return errors.Join(err, m.drop(index))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slots[index] = idle
	m.free = append(m.free, index)
	return nil
}

// Adopt takes the slot of an instance that outlived an earlier manager. It
// touches neither address nor policy: both are the instance's.
func (m *Manager) Adopt(_ context.Context, index int) (Slot, error) {
	m.mu.Lock()
	st, ok := m.slots[index]
	m.mu.Unlock()
	switch {
	case !ok:
		return Slot{}, cay.Errorf(cay.NotFound, "there is no network slot %d", index)
	case st != found:
		return Slot{}, cay.Errorf(cay.Conflict, "network slot %d is in use already", index)
	case !m.whole(index):
		return Slot{}, cay.Errorf(cay.NotFound, "network slot %d is damaged", index)
	}
	m.set(index, held)
	return m.slot(index), nil
}

// Reclaim frees the slots that were found at Open and not adopted.
func (m *Manager) Reclaim(ctx context.Context) error {
	m.mu.Lock()
	var left []int
	for index, st := range m.slots {
		if st == found {
			left = append(left, index)
		}
	}
	m.mu.Unlock()
	slices.Sort(left)
	var errs []error
	for _, index := range left {
		if err := ctx.Err(); err != nil {
			return err
		}
		if m.whole(index) {
			errs = append(errs, m.recycle(index))
		} else {
			errs = append(errs, m.drop(index))
		}
	}
	m.want()
	return errors.Join(errs...)
}

// Teardown closes the manager and removes everything that bears its name, in
// use or not.
func (m *Manager) Teardown(_ context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.filling.Wait()
	m.mu.Lock()
	all := make([]int, 0, len(m.slots))
	for index := range m.slots {
		all = append(all, index)
	}
	m.mu.Unlock()
	var errs []error
	for _, index := range all {
		errs = append(errs, m.remove(index))
		m.forget(index)
	}
	errs = append(errs, m.deleteTable(), m.Close())
	return errors.Join(errs...)
}

// want hints that spare slots may be missing.
func (m *Manager) want() {
	select {
	case m.wanted <- struct{}{}:
	default:
	}
}

// fill keeps spare free slots. It waits for the first want, so that Open, and
// a server that is only asked for its state, makes none.
func (m *Manager) fill(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wanted:
		}
		for ctx.Err() == nil {
			m.mu.Lock()
			enough := len(m.free) >= spare
			index, err := 0, error(nil)
			if !enough {
				index, err = m.reserve()
			}
			m.mu.Unlock()
			if enough || err != nil {
				break
			}
			if err := m.build(index); err != nil {
				m.forget(index)
				break // Acquire will meet the same error, and tell it
			}
			m.mu.Lock()
			m.slots[index] = idle
			m.free = append(m.free, index)
			m.mu.Unlock()
		}
	}
}

func (m *Manager) set(index int, st state) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slots[index] = st
}

func (m *Manager) forget(index int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.slots, index)
	delete(m.shaped, index)
}

// drop removes a slot for good.
func (m *Manager) drop(index int) error {
	err := m.remove(index)
	if err == nil {
		m.forget(index)
	}
	// A slot that cannot be removed keeps its index, so that no instance gets it.
	return err
}
