package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// DiaryPath is where the agent tells what happened inside: GET
// DiaryPath?after=N answers with Diary. Agents that are older do not know it.
const DiaryPath = "/diary"

const (
	// DiaryReply bounds an answer: the agent sends no more, the host reads
	// no more.
	DiaryReply = 256 << 10
	// DiaryPage is how many entries an answer has at most.
	DiaryPage = 512
)

// ErrNoDiary is the answer of an agent that is too old to keep one.
var ErrNoDiary = errors.New("the agent keeps no diary")

// Diary is a page of what happened inside a sandbox since its last /init,
// oldest first.
type Diary struct {
	// Epoch changes with each /init: numbers start again then.
	Epoch   string       `json:"epoch"`
	Entries []DiaryEntry `json:"entries"`
	// More says that there are entries beyond this page.
	More bool `json:"more,omitempty"`
}

// DiaryEntry is a line. Numbers grow by one from 1; those that are missing
// were too many to keep.
type DiaryEntry struct {
	Seq     int64             `json:"seq"`
	At      time.Time         `json:"at"`
	Level   string            `json:"level"`  // debug, info, warn, error
	Logger  string            `json:"logger"` // which part of the agent
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
	// Event, if any, is the event that this is as well, as "process.killed".
	Event string `json:"event,omitempty"`
}

// Diary reads what happened after an entry. ErrNoDiary when the agent has
// none.
func (c *Client) Diary(ctx context.Context, token string, after int64) (Diary, error) {
	url := c.base + DiaryPath + "?after=" + strconv.FormatInt(after, 10)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Diary{}, err
	}
	if token != "" {
		req.Header.Set("X-Access-Token", token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Diary{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, DiaryReply))
	switch {
	case err != nil:
		return Diary{}, err
	case resp.StatusCode == http.StatusNotFound:
		return Diary{}, ErrNoDiary
	case resp.StatusCode != http.StatusOK:
		return Diary{}, fmt.Errorf("agent answered %s with %d: %.200q", DiaryPath, resp.StatusCode, text)
	}
	var out Diary
	if err := json.Unmarshal(text, &out); err != nil {
		return Diary{}, fmt.Errorf("agent's diary: %w", err)
	}
	if len(out.Entries) > DiaryPage {
		return Diary{}, fmt.Errorf("agent's diary has a page of %d entries", len(out.Entries))
	}
	return out, nil
}
