package toagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/cay-run/cay/internal/guest"
)

// ErrNoDiary is the answer of an agent that is too old to keep one.
var ErrNoDiary = errors.New("the agent keeps no diary")

// Diary reads what happened after an entry. ErrNoDiary when the agent has
// none.
func (c *Client) Diary(ctx context.Context, token string, after int64) (guest.Diary, error) {
	url := c.base + guest.DiaryPath + "?after=" + strconv.FormatInt(after, 10)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return guest.Diary{}, err
	}
	if token != "" {
		req.Header.Set("X-Access-Token", token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return guest.Diary{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, guest.DiaryReply))
	switch {
	case err != nil:
		return guest.Diary{}, err
	case resp.StatusCode == http.StatusNotFound:
		return guest.Diary{}, ErrNoDiary
	case resp.StatusCode != http.StatusOK:
		return guest.Diary{}, fmt.Errorf("agent answered %s with %d: %.200q", guest.DiaryPath, resp.StatusCode, text)
	}
	var out guest.Diary
	if err := json.Unmarshal(text, &out); err != nil {
		return guest.Diary{}, fmt.Errorf("agent's diary: %w", err)
	}
	if len(out.Entries) > guest.DiaryPage {
		return guest.Diary{}, fmt.Errorf("agent's diary has a page of %d entries", len(out.Entries))
	}
	return out, nil
}
