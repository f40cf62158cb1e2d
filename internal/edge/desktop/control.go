package desktop

import (
	"encoding/binary"
	"time"
)

const (
	// askWithin is how long the holder of the control may say no to one who asks.
	askWithin = 10 * time.Second
	// silence is after how long without input the control is free to take.
	silence = time.Minute
	// maxKeys bounds the keys that are held down at once.
	maxKeys = 64
)

// State is what viewers are told of each other, whenever it changes.
type State struct {
	You        int    `json:"you"`
	MayControl bool   `json:"mayControl"`
	Controller int    `json:"controller"` // 0 for none
	Asking     int    `json:"asking"`     // for the control; 0 for none
	Viewers    []Seen `json:"viewers"`
	Width      int    `json:"width"`
	Height     int    `json:"height"`
}

// Seen is a viewer, as the others see it.
type Seen struct {
	ID       int    `json:"id"`
	Name     string `json:"name"`
	ViewOnly bool   `json:"viewOnly"`
	Records  bool   `json:"records"`
}

// Word is what a viewer says of the control: take asks for it; give hands it to the
// one who asks, keep does not, and free lets go of it.
type Word struct {
	Do string `json:"do"`
}

// End is why a desktop is over.
type End struct {
	Message string `json:"message"`
	Code    string `json:"code"`
}

// state is what a viewer has not been told, nil for nothing. The caller holds s.mu.
func (s *screen) state(v *viewer) *State {
	if v.version == s.version {
		return nil
	}
	v.version = s.version
	out := &State{You: v.id, MayControl: v.who.MayControl, Width: s.frame.w, Height: s.frame.h}
	if s.controller != nil {
		out.Controller = s.controller.id
	}
	if s.asking != nil {
		out.Asking = s.asking.id
	}
	for _, x := range s.viewers {
		out.Viewers = append(out.Viewers, Seen{ID: x.id, Name: x.who.Name, ViewOnly: !x.who.MayControl, Records: x.recorder})
	}
	return out
}

// hear carries out what a viewer says of the control.
func (s *screen) hear(v *viewer, w Word) {
	s.mu.Lock()
	var up []byte
	switch {
	case w.Do == "take" && v.who.MayControl && s.controller != v:
		if s.controller == nil || time.Since(s.lastInput) >= silence {
			up = s.hand(v)
		} else if s.asking == nil {
			s.asking = v
			s.asked = time.AfterFunc(askWithin, func() { s.yield(v) })
		}
	case w.Do == "give" && s.controller == v && s.asking != nil:
		up = s.hand(s.asking)
	case w.Do == "keep" && s.controller == v:
		s.unask()
	case w.Do == "free" && s.controller == v:
		up = s.hand(s.asking)
	}
	s.told()
	s.mu.Unlock()
	s.send(up)
}

// yield gives the control to a viewer that asked for it and was not told no.
func (s *screen) yield(v *viewer) {
	s.mu.Lock()
	var up []byte
	if s.asking == v {
		up = s.hand(v)
		s.told()
	}
	s.mu.Unlock()
	s.send(up)
}

func (s *screen) unask() {
	s.asking = nil
	if s.asked != nil {
		s.asked.Stop()
	}
}

// hand gives the control to a viewer, or to none, and returns what lets go of the
// keys and buttons that the one before holds down. The caller holds s.mu, and sends
// that.
func (s *screen) hand(v *viewer) (up []byte) {
	s.unask()
	s.controller, s.lastInput = v, time.Now()
	for key := range s.keys {
		up = binary.BigEndian.AppendUint32(append(up, toServerKey, 0, 0, 0), key)
	}
	clear(s.keys)
	if s.pointer[0] != 0 {
		s.pointer[0] = 0
		up = append(append(up, toServerPointer), s.pointer[:]...)
	}
	return up
}

// without takes the control from a viewer that goes. The caller holds s.mu, and
// sends what it returns.
func (s *screen) without(v *viewer) (up []byte) {
	if s.asking == v {
		s.unask()
	}
	if s.controller == v {
		up = s.hand(s.asking)
	}
	return up
}

// input reads a key, a movement or a text of a viewer, and passes it on for the one
// that has the control. All other input goes nowhere.
func (s *screen) input(v *viewer, kind int) error {
	var message []byte
	switch kind {
	case toServerKey:
		message = append([]byte{toServerKey}, v.in.next(7)...)
	case toServerPointer:
		message = append([]byte{toServerPointer}, v.in.next(5)...)
	case toServerCut:
		v.in.next(3)
		text := v.in.text()
		message = binary.BigEndian.AppendUint32([]byte{toServerCut, 0, 0, 0}, uint32(len(text)))
		message = append(message, text...)
	}
	if v.in.err != nil {
		return v.in.err
	}
	s.mu.Lock()
	passes := s.controller == v && s.note(message)
	s.mu.Unlock()
	if passes {
		s.send(message)
	}
	return nil
}

// note remembers what a message holds down, and reports whether it may pass. The
// caller holds s.mu.
func (s *screen) note(message []byte) bool {
	s.lastInput = time.Now()
	switch message[0] {
	case toServerKey:
		key, down := binary.BigEndian.Uint32(message[4:]), message[1] != 0
		if !down {
			delete(s.keys, key)
			return true
		}
		if len(s.keys) >= maxKeys && !s.keys[key] {
			return false
		}
		s.keys[key] = true
	case toServerPointer:
		copy(s.pointer[:], message[1:])
	}
	return true
}
