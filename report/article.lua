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
