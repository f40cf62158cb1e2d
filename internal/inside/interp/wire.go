package interp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// delimiter stands between the routing frames and a message's own.
const delimiter = "<IDS|MSG>"

// protocolVersion is the Jupyter messaging protocol that we speak.
const protocolVersion = "5.3"

// header is the header of a Jupyter message.
type header struct {
	ID       string `json:"msg_id"`
	Type     string `json:"msg_type"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Version  string `json:"version"`
}

// message is a Jupyter message as far as we read it.
type message struct {
	header  header
	parent  string // id of the message that this one answers
	content json.RawMessage
}

// encode makes the frames of a request, signed with key.
func encode(key []byte, h header, content any) ([][]byte, error) {
	h.Date = time.Now().UTC().Format(time.RFC3339Nano)
	h.Version = protocolVersion
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	parts := [][]byte{head, []byte("{}"), []byte("{}"), body}
	return append([][]byte{[]byte(delimiter), sign(key, parts)}, parts...), nil
}

// decode reads a message and checks its signature. Buffers after the content
// are ignored.
func decode(key []byte, frames [][]byte) (*message, error) {
	for len(frames) > 0 && string(frames[0]) != delimiter {
		frames = frames[1:]
	}
	if len(frames) < 6 {
		return nil, errors.New("not a Jupyter message")
	}
	parts := frames[2:6]
	if !hmac.Equal(frames[1], sign(key, parts)) {
		return nil, errors.New("Jupyter message with a wrong signature")
	}
	m := &message{content: parts[3]}
	if err := json.Unmarshal(parts[0], &m.header); err != nil {
		return nil, fmt.Errorf("header of a Jupyter message: %w", err)
	}
	var parent header
	if err := json.Unmarshal(parts[1], &parent); err != nil {
		return nil, fmt.Errorf("parent header of a Jupyter message: %w", err)
	}
	m.parent = parent.ID
	return m, nil
}

func sign(key []byte, parts [][]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, p := range parts {
		mac.Write(p)
	}
	return hex.AppendEncode(nil, mac.Sum(nil))
}
