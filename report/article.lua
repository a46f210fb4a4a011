-- A figure or a table that has nothing to show here leaves no caption behind.
local function shows(content)
  local found = false
  pandoc.walk_block(pandoc.Div(content), {
    Image = function() found = true end,
    Table = function() found = true end,
    RawBlock = function() found = true end,
    RawInline = function() found = true end,
  })
  return found
end

function FloatRefTarget(float)
  local content = float.content
  if content.t then content = { content } end
  if not shows(content) then return {} end
end

-- What is folded on the page is not printed: nobody could open it.
function Blocks(blocks)
  if quarto.doc.is_format("html") then return nil end
  local kept, depth = pandoc.Blocks({}), 0
  for _, block in ipairs(blocks) do
    local raw = block.t == "RawBlock" and block.text or ""
    if raw:find("<details", 1, true) then depth = depth + 1 end
    if depth == 0 then kept:insert(block) end
    if raw:find("</details>", 1, true) then depth = depth - 1 end
  end
  return kept
end

-- Nor are links to other forms of this page; a badge is in brackets there.
function Para(paragraph)
  if quarto.doc.is_format("html") then return nil end
  local elsewhere = false
  paragraph:walk({ Link = function(link) elsewhere = elsewhere or link.target == "zh.html" end })
  if elsewhere then return {} end
end

function Span(span)
  if span.classes:includes("evidence") and not quarto.doc.is_format("html") then
    return { pandoc.Str("["), pandoc.Emph(span.content), pandoc.Str("]") }
  end
end
