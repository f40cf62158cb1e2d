package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Webhook has the team's events sent to an address.
type Webhook struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	Events    []string  `json:"events"`
	Enabled   bool      `json:"enabled"`
	CreatedAt time.Time `json:"createdAt"`
	TeamID    string    `json:"teamId"`
	// SignatureSecret is of a new webhook whose secret the server made.
	SignatureSecret string `json:"signatureSecret,omitempty"`
	// DisabledReason says why the server turned it off: gone or failing.
	DisabledReason string    `json:"disabledReason,omitempty"`
	FailingSince   time.Time `json:"failingSince,omitzero"`
}

// WebhookOptions are the settings that a webhook is made with, or those that
// change. A nil field stays as it is.
type WebhookOptions struct {
	Name    *string  `json:"name,omitempty"`
	URL     *string  `json:"url,omitempty"`
	Events  []string `json:"events,omitempty"`
	Enabled *bool    `json:"enabled,omitempty"`
	// SignatureSecret signs requests; for a new webhook, nil has the server make
	// one.
	SignatureSecret *string `json:"signatureSecret,omitempty"`
}

// WebhookAttempt is one request to a webhook's address.
type WebhookAttempt struct {
	ID             string    `json:"id"`
	EventID        string    `json:"eventId"`
	EventType      string    `json:"eventType"`
	Status         string    `json:"status"` // success or failed
	DurationMs     int64     `json:"durationMs"`
	RequestBody    string    `json:"requestBody"`
	RequestHeaders string    `json:"requestHeaders"`
	RequestURL     string    `json:"requestUrl"`
	ResponseBody   string    `json:"responseBody"`
	ResponseStatus int       `json:"responseHttpStatusCode"`
	ErrorClass     string    `json:"errorClass"`
	ErrorMessage   string    `json:"errorMessage"`
	Timestamp      time.Time `json:"timestamp"`
	NextAttemptAt  time.Time `json:"nextAttemptAt,omitzero"`
}

// WebhookDelivery is an event with the attempts to tell it.
type WebhookDelivery struct {
	EventID   string           `json:"eventId"`
	EventType string           `json:"eventType"`
	SandboxID string           `json:"sandboxId"`
	Attempts  []WebhookAttempt `json:"attempts"`
}

// WebhookTest is how the test of a webhook went.
type WebhookTest struct {
	DeliveryID   string `json:"deliveryID"`
	EventID      string `json:"eventID"`
	Success      bool   `json:"success"`
	DurationMs   int64  `json:"durationMs"`
	StatusCode   int    `json:"statusCode,omitempty"`
	ResponseBody string `json:"responseBody,omitempty"`
	ErrorClass   string `json:"errorClass,omitempty"`
	ErrorMessage string `json:"errorMessage,omitempty"`
}

const webhooksPath = "/events/webhooks"

// CreateWebhook has events from now on sent to an address.
func (c *Client) CreateWebhook(ctx context.Context, o WebhookOptions) (Webhook, error) {
	var out Webhook
	_, err := c.call(ctx, http.MethodPost, webhooksPath, o, &out)
	return out, err
}

// Webhooks lists the team's webhooks, oldest first.
func (c *Client) Webhooks(ctx context.Context) ([]Webhook, error) {
	var out []Webhook
	_, err := c.call(ctx, http.MethodGet, webhooksPath, nil, &out)
	return out, err
}

// Webhook finds a webhook.
func (c *Client) Webhook(ctx context.Context, id string) (Webhook, error) {
	var out Webhook
	_, err := c.call(ctx, http.MethodGet, webhooksPath+"/"+url.PathEscape(id), nil, &out)
	return out, err
}

// UpdateWebhook changes a webhook.
func (c *Client) UpdateWebhook(ctx context.Context, id string, o WebhookOptions) (Webhook, error) {
	var out Webhook
	_, err := c.call(ctx, http.MethodPatch, webhooksPath+"/"+url.PathEscape(id), o, &out)
	return out, err
}

// RemoveWebhook forgets a webhook.
func (c *Client) RemoveWebhook(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, webhooksPath+"/"+url.PathEscape(id), nil, nil)
	return err
}

// DeliveryOptions say which deliveries to list.
type DeliveryOptions struct {
	Status string // success or failed; empty means both
	Limit  int    // the newest so many; 0 means 25
}

// WebhookDeliveries lists what was sent to a webhook in the last week, the
// newest first.
func (c *Client) WebhookDeliveries(ctx context.Context, id string, o DeliveryOptions) ([]WebhookDelivery, error) {
	const page = 100
	left := o.Limit
	if left <= 0 {
		left = 25
	}
	out := []WebhookDelivery{}
	query := url.Values{}
	if o.Status != "" {
		query.Set("deliveryStatus", o.Status)
	}
	for left > 0 {
		query.Set("limit", strconv.Itoa(min(left, page)))
		var got struct {
			Data       []WebhookDelivery `json:"data"`
			NextCursor string            `json:"nextCursor"`
		}
		if _, err := c.call(ctx, http.MethodGet, webhooksPath+"/"+url.PathEscape(id)+"/deliveries?"+query.Encode(), nil, &got); err != nil {
			return nil, err
		}
		out = append(out, got.Data...)
		left -= len(got.Data)
		if got.NextCursor == "" {
			break
		}
		query.Set("cursor", got.NextCursor)
	}
	return out, nil
}

// TestWebhook sends an event of the type webhook.test and tells how that went.
func (c *Client) TestWebhook(ctx context.Context, id string) (WebhookTest, error) {
	var out WebhookTest
	_, err := c.call(ctx, http.MethodPost, "/cay/v1/webhooks/"+url.PathEscape(id)+"/test", nil, &out)
	return out, err
}

// RotateWebhook gives a webhook another secret and returns it, unless the caller
// chose it. The one before signs too for 24 hours.
func (c *Client) RotateWebhook(ctx context.Context, id, secret string) (string, error) {
	in, out := map[string]string{}, map[string]string{}
	if secret != "" {
		in["signatureSecret"] = secret
	}
	_, err := c.call(ctx, http.MethodPost, "/cay/v1/webhooks/"+url.PathEscape(id)+"/rotate", in, &out)
	return out["signatureSecret"], err
}

// RedeliverWebhook has an event of the last week be sent once more.
func (c *Client) RedeliverWebhook(ctx context.Context, id, eventID string) error {
	_, err := c.call(ctx, http.MethodPost, "/cay/v1/webhooks/"+url.PathEscape(id)+"/deliveries/"+url.PathEscape(eventID)+"/redeliver", nil, nil)
	return err
}
